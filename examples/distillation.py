"""Distillation: a small student learns from a larger teacher, which is frozen and part of the model.

The teacher is trained with labels. The student sees none: it learns the teacher's probabilities on other images. Prints
the validation accuracy of both. Takes about 15 seconds.
"""

import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import ClassificationOutput, data, metrics, schedule


def digits(part, size, seed=0):
    images, labels = data.digits(part, size=size, seed=seed).tensors
    return images[:, None] / 255, labels


def cnn(width):
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(18 * width, 10)),
    )


def step(model, batch):
    images, _ = batch
    student, teacher = (model[name](images).div(3).log_softmax(1) for name in ("student", "teacher"))  # temperature 3
    loss = 9 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return {"loss": loss, "agreement": (student.argmax(1) == teacher.argmax(1)).float().mean()}


def valid_step(model, batch):
    images, labels = batch
    logits = model["student"](images)
    return ClassificationOutput(F.cross_entropy(logits, labels), logits, labels)


torch.manual_seed(0)
valid, accuracy = digits("test", 1000), metrics.Accuracy(on="valid")
teacher = stoker.Learner(
    cnn(16),
    loss=nn.CrossEntropyLoss(label_smoothing=0.1),
    lr=schedule.cosine(3e-3),
    metrics=[accuracy],
    seed=0,
).fit(digits("train", 4000), valid=valid, epochs=6, batch_size=64)
model = nn.ModuleDict({"student": cnn(4), "teacher": stoker.freeze(teacher.model, eval=True)})
learner = stoker.Learner(model, step=step, valid_step=valid_step, lr=1e-2, metrics=[accuracy], seed=0)
student = learner.fit(digits("train", 4000, seed=1), valid=valid, epochs=8, batch_size=64)
scores = {name: fitted.evaluate(valid)["accuracy"] for name, fitted in (("teacher", teacher), ("student", student))}
print(f"validation accuracy: teacher {scores['teacher']:.3f}, student {scores['student']:.3f} without a label")
