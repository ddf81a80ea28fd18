"""Lightning: a `LightningModule` and a `Trainer` with logger, progress bar, summary and checkpoints off.

`barebones=True` would be a little faster, but it drops all logged values: there would be no loss and no metric.
"""

import logging
import warnings

import lightning as L
from torch.nn.functional import l1_loss

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*does not have many workers.*")  # workers would slow down a toy


class Module(L.LightningModule):
    def __init__(self, work):
        super().__init__()
        self.work, self.model = work, work.model()

    def training_step(self, batch):
        inputs, targets = batch
        predictions = self.model(inputs)
        loss = self.work.loss(predictions, targets)
        values = {"loss": loss, self.work.metric: self._metric(predictions.detach(), targets)}
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=len(inputs))
        return loss

    def _metric(self, predictions, targets):
        if self.work.metric == "accuracy":
            return (predictions.argmax(1) == targets).float().mean()
        return l1_loss(predictions, targets)

    def configure_optimizers(self):
        return self.work.optimizer(self.model)


class Marks(L.Callback):
    def __init__(self, clock):
        self.on_train_epoch_end = clock


def fit(work, epochs, clock):
    module = Module(work)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu" if work.device == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Marks(clock)],
    )
    trainer.fit(module, work.dataloader())
    return module.model, trainer.global_step
