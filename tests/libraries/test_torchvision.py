"""Models of torchvision: classification, segmentation (a mapping of outputs) and detection (a mapping of losses)."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import data
from tests.libraries.checks import Case, assert_same

pytestmark = pytest.mark.soak
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(6, 3, 32, 32, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (6,), generator=GENERATOR)
MASKS = torch.randint(0, 3, (6, 32, 32), generator=GENERATOR)
MASKS[:, :3] = 255  # not labelled


def classification():
    import torchvision

    def loss(model, batch):
        images, classes = batch
        return F.cross_entropy(model(images), classes)

    return Case(
        lambda: torchvision.models.MobileNetV2(num_classes=3, width_mult=0.1),
        (IMAGES, CLASSES),
        loss,
        {"loss": nn.CrossEntropyLoss()},
        lr=1e-3,
        inputs=IMAGES,
        predict=lambda model, images: model(images),
    )


def segmentation():
    import torchvision

    def loss(model, batch):
        images, masks = batch
        return F.cross_entropy(model(images)["out"], masks, ignore_index=255)

    def make():
        layers = torchvision.models.MobileNetV2(width_mult=0.1).features
        backbone = torchvision.models._utils.IntermediateLayerGetter(layers, {"13": "out"})
        return torchvision.models.segmentation.FCN(backbone, torchvision.models.segmentation.fcn.FCNHead(16, 3))

    return Case(
        make,
        (IMAGES, MASKS),
        loss,
        {"step": loss},
        lr=1e-3,
        count=lambda batch: (batch[1] != 255).sum(),
    )


class Backbone(nn.Sequential):
    out_channels = 8

    def __init__(self):
        layers = nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
        super().__init__(*layers)


def detector():
    import torchvision
    from torchvision.models import detection

    anchors = detection.anchor_utils.AnchorGenerator(sizes=((8, 16),), aspect_ratios=((1.0,),))
    pool = torchvision.ops.MultiScaleRoIAlign(featmap_names=["0"], output_size=3, sampling_ratio=2)
    return detection.FasterRCNN(
        Backbone(),
        rpn_anchor_generator=anchors,
        box_roi_pool=pool,
        min_size=32,
        max_size=32,
        rpn_pre_nms_top_n_train=40,
        rpn_post_nms_top_n_train=20,
        rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=10,
        box_batch_size_per_image=16,
        box_head=detection.faster_rcnn.TwoMLPHead(8 * 3 * 3, 16),
        box_predictor=detection.faster_rcnn.FastRCNNPredictor(16, 3),
    )


def scene(number):
    """An image with one to three boxes."""
    generator = torch.Generator().manual_seed(number)
    corners = torch.randint(0, 16, (1 + number % 3, 2), generator=generator).float()
    boxes = torch.cat([corners, corners + 12], 1)
    return torch.rand(3, 32, 32, generator=generator), {
        "boxes": boxes,
        "labels": torch.ones(len(boxes), dtype=torch.long),
    }


def collate(rows):
    return [image for image, _ in rows], [target for _, target in rows]


def detecting():
    scenes = data.Loader([scene(number) for number in range(6)], batch_size=2, collate_fn=collate)
    return Case(
        detector,
        scenes,
        lambda model, batch: sum(model(*batch).values()),
        batch_size=None,
        lr=1e-3,
        metrics_only=True,
    )


CASES = {"classification": classification, "segmentation": segmentation, "detection": detecting}


def test_a_detector_is_viewed_and_predicts_without_targets():
    """In eval mode it returns a list of detections, one mapping for each image, and no loss."""
    case = detecting()
    model = case.model().train()
    images = [scene(number)[0] for number in range(6)]
    view = stoker.valid(model)
    with torch.no_grad():
        found = view(images)
        assert model.training and model.roi_heads.training
        assert_same(found, model.eval()(images))
    fitted = case.fit(case.learner(), epochs=1)
    predictions = fitted.predict(data.Loader(images, batch_size=2, collate_fn=lambda images: (images,)))
    with torch.no_grad():
        expected = [each for first in (0, 2, 4) for each in fitted.model(images[first : first + 2])]
    assert len(predictions) == 6
    assert_same(predictions, expected)


def test_the_losses_of_a_detector_are_recorded_by_name():
    fitted = detecting().fit(detecting().learner())
    names = ["loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"]
    parts = [fitted.history[f"train/{name}"] for name in names]
    assert fitted.history["train/loss"] == pytest.approx([sum(each) for each in zip(*parts, strict=True)])


def test_the_declared_operators_compute_what_torchvision_computes():
    """tests/torchvision_ops.py against torchvision's own Python version, and against a slow one."""
    import torchvision

    boxes = torch.rand(20, 2, dtype=torch.double, generator=GENERATOR) * 3
    boxes = torch.cat([boxes, boxes + 0.5 + torch.rand(20, 2, dtype=torch.double, generator=GENERATOR) * 3], 1)
    samples = torch.randint(0, 2, (20, 1), generator=GENERATOR).double()
    features = torch.randn(2, 3, 9, 11, dtype=torch.double, generator=GENERATOR, requires_grad=True)
    python = sys.modules["torchvision.ops.roi_align"]._roi_align.__wrapped__  # before torch.compile
    for aligned in (False, True):
        found = torchvision.ops.roi_align(features, torch.cat([samples, boxes], 1), (3, 2), 1.2, 2, aligned)
        expected = python(features, torch.cat([samples, boxes], 1), 1.2, 3, 2, 2, aligned)
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(each.square().sum(), features)[0] for each in (found, expected)]
        torch.testing.assert_close(*grads)
    scores = torch.rand(20, generator=GENERATOR).double()
    kept: list[int] = []
    for number in scores.argsort(descending=True).tolist():
        if all(torchvision.ops.box_iou(boxes[[number]], boxes[[other]]) <= 0.4 for other in kept):
            kept.append(number)
    assert torchvision.ops.nms(boxes, scores, 0.4).tolist() == kept
