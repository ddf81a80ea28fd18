"""Detection with torchvision: FCOS computes a dict of losses in training, and lists of boxes in validation.

Images with plain and striped discs are drawn by code. The losses are recorded by name; the metric compares boxes.
Prints the share of the discs in validation images that are found. Takes about 15 seconds.
"""

import torch
from torch import nn
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import Conv2dNormActivation, box_iou

import stoker
from stoker import data, metrics


def draw(count, seed, size=64):
    """Images [3, size, size], each with the boxes and labels (1 plain, 2 striped) of one to three discs."""
    generator, images, targets = torch.Generator().manual_seed(seed), [], []
    y, x = torch.arange(size)[:, None], torch.arange(size)
    for _ in range(count):
        discs = int(torch.randint(1, 4, (), generator=generator))
        centres = torch.randint(12, size - 12, (discs, 2), generator=generator)
        radius, labels = torch.randint(8, 13, (discs, 1), generator=generator), torch.arange(discs) % 2 + 1
        image = 0.1 * torch.randn(3, size, size, generator=generator)
        for (cx, cy), r, label in zip(centres, radius, labels, strict=True):
            inside = (x - cx).square() + (y - cy).square() < r.square()
            image[:, inside & ((label == 1) | (x % 4 < 2))] += 1
        images.append(image)
        targets.append({"boxes": torch.cat((centres - radius, centres + radius), 1).float(), "labels": labels})
    return list(zip(images, targets, strict=True))


def found(predictions, targets):
    """The share of the discs in each image that a box of the right label covers."""
    shares = []
    for boxes, true in zip(predictions, targets, strict=True):
        hits = (box_iou(true["boxes"], boxes["boxes"]) > 0.5) & (true["labels"][:, None] == boxes["labels"])
        shares.append((hits & (boxes["scores"] > 0.3)).any(1).float().mean())
    return torch.stack(shares)


def collate(samples):
    return tuple(zip(*samples, strict=True))  # images, targets


torch.manual_seed(0)
widths = [(3, 16), (16, 32), (32, 64)]
backbone = nn.Sequential(*[Conv2dNormActivation(*pair, kernel_size=3, stride=2) for pair in widths])
backbone.out_channels = 64
anchors = AnchorGenerator(sizes=((8,),), aspect_ratios=((1.0,),))
model = FCOS(backbone, num_classes=3, anchor_generator=anchors, min_size=64, max_size=64)
train = data.Loader(draw(200, seed=0), batch_size=16, shuffle=0, collate_fn=collate)
valid = data.Loader(draw(50, seed=1), batch_size=16, collate_fn=collate)
learner = stoker.Learner(model, lr=3e-3, metrics=[metrics.of(found, direction="max", on="valid")], seed=0)
fitted = learner.fit(train, valid=valid, epochs=8, monitor="valid/found")
print(f"discs found in validation: {fitted.evaluate(valid)['found']:.3f}")
