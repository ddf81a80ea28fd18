"""A metric like those of object detection."""

import torch
import torchmetrics


class Detection(torchmetrics.Metric):
    """Has the states, arguments and values of `MeanAveragePrecision`, whose computation needs another package."""

    higher_is_better = True

    def __init__(self):
        super().__init__()
        for name in ("detection_box", "detection_labels", "detection_mask", "groundtruth_labels"):
            self.add_state(name, default=[], dist_reduce_fx=None)

    def update(self, preds, target):
        for found, true in zip(preds, target, strict=True):
            self.detection_box.append(found["boxes"])
            self.detection_labels.append(found["labels"])
            self.detection_mask.append((((4, 4), b"rle"),) * len(found["labels"]))  # as masks are stored
            self.groundtruth_labels.append(true["labels"])

    def compute(self):
        found, true = torch.cat(self.detection_labels), torch.cat(self.groundtruth_labels)
        classes = torch.cat([found, true]).unique()
        return {
            "map": torch.cat(self.detection_box).mean(),
            "map_per_class": torch.stack([(found == each).sum() for each in classes]).float(),
            "mar_100_per_class": torch.tensor(-1.0),
            "classes": classes.int(),
            "precision": torch.zeros(2, 3, 4),  # with `extended_summary`
            "ious": {(0, 1): torch.zeros(3)},
        }
