"""Image classification with timm: learning rates by layer, mixup, averaged weights, the best by accuracy.

Trains a small ResNet on digits that stoker draws; layers near the input learn more slowly. Prints the
validation accuracy. Takes about 15 seconds.
"""

import timm
import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics, schedule


def digits(part, size):
    images, labels = data.digits(part, size=size).tensors
    return images[:, None] / 255, labels


torch.manual_seed(0)
model = timm.create_model("test_resnet.r160_in1k", pretrained=False, num_classes=10, in_chans=1)
lr = schedule.cosine(1e-2, warmup=0.1)  # over the updates of the fit
learner = stoker.Learner(
    model,
    loss=nn.CrossEntropyLoss(label_smoothing=0.1),
    lr={"conv1": 0.25 * lr, "layer1": 0.25 * lr, "layer2": 0.5 * lr, "*": lr},
    metrics=[metrics.Accuracy(on="valid")],
    ema=0.99,
    seed=0,
)
fitted = learner.fit(
    digits("train", 2000),
    valid=digits("test", 1000),
    epochs=6,
    batch_size=128,
    monitor="valid/accuracy",
    callbacks=[callbacks.MixUp(0.2)],
)
print(f"validation accuracy: {fitted.best.value:.3f} in epoch {fitted.best.epoch}")
