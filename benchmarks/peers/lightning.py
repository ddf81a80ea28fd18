"""Lightning: a `LightningModule` and a `Trainer` with logger, bar, summary and checkpoints off.

Its `barebones=True` would be a little faster, but drops what is logged: then there is neither a loss nor a metric.
"""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.nn.functional import l1_loss

from benchmarks._harness import BATCH, batches_of, toy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*does not have many workers.*")  # workers would only slow a toy down


class Module(L.LightningModule):
    def __init__(self, model, criterion):
        super().__init__()
        self.model, self.criterion = model, criterion

    def training_step(self, batch):
        inputs, targets = batch
        predictions = self.model(inputs)
        loss = self.criterion(predictions, targets)
        values = {"loss": loss, "mae": l1_loss(predictions.detach(), targets)}
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=BATCH)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fit(epochs, loss=None):
    x, y, model = toy()
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(model, loss or nn.MSELoss()), batches_of(x, y))
    return model, trainer.global_step
