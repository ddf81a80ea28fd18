"""Image classifiers of timm."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.libraries.checks import Case

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(10, 3, 32, 32, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (10,), generator=GENERATOR)
MODELS = {
    "ResNet": ("resnet10t", {"channels": (8, 8, 16, 16), "stem_width": 8}),
    "ViT": (
        "vit_tiny_patch16_224",
        {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2, "drop_path_rate": 0.1},
    ),
    "ConvNeXt": ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "drop_path_rate": 0.1}),
    "EfficientNet": ("test_efficientnet", {"drop_rate": 0.1}),
}


def case(name):
    kind, settings = MODELS[name]

    def loss(model, batch):
        images, classes = batch
        return F.cross_entropy(model(images), classes)

    def make():
        import timm

        return timm.create_model(kind, num_classes=3, **settings)

    return Case(
        make,
        (IMAGES, CLASSES),
        loss,
        {"loss": nn.CrossEntropyLoss()},
        inputs=IMAGES,
        predict=lambda model, images: model(images),
        lr=1e-3,
        resumed={"ema": 0.9},
    )
