"""Image classifiers of timm."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.libraries.checks import (
    Case,
    check_evaluation,
    check_executors,
    check_resume,
    check_summary,
    check_training,
    check_view,
)

pytestmark = pytest.mark.soak
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
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_view_computes_what_eval_mode_computes(name):
    check_view(case(name))


@pytest.mark.parametrize("name", MODELS)
def test_a_summary_and_an_explanation(name):
    check_summary(case(name))


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_has_the_weights_of_a_plain_loop(name):
    check_training(case(name))


@pytest.mark.parametrize("name", MODELS)
def test_a_crashed_run_resumes_to_the_same_bits(name, tmp_path):
    check_resume(case(name), tmp_path, ema=0.9)


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_and_predictions(name):
    check_evaluation(case(name))


@pytest.mark.cuda
@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_has_the_bits_of_an_eager_one(name):
    print(name, check_executors(case(name)), sep="\n")
