"""Hugging Face: `Trainer` that logs once an epoch, prints and saves nothing; its default clipping is off."""

import tempfile

from torch import nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Samples(Dataset):
    """A dict for each sample, as its collator expects."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {"inputs": self.x[row], "labels": self.y[row]}


class WithLoss(nn.Module):
    """A model that returns its loss, as the `Trainer` expects."""

    def __init__(self, work):
        super().__init__()
        self.model, self.loss = work.model(), work.loss

    def forward(self, inputs, labels):
        predictions = self.model(inputs)
        return {"loss": self.loss(predictions, labels), "logits": predictions}


class Marks(TrainerCallback):
    def __init__(self, clock):
        self.on_epoch_end = clock


def fit(work, epochs, clock):
    wrapped = WithLoss(work)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=work.batch,
            learning_rate=work.lr,
            lr_scheduler_type="constant",
            weight_decay=0.0,  # makes its AdamW Adam
            max_grad_norm=0.0,
            logging_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=work.device == "cpu",
        )
        trainer = Trainer(wrapped, settings, train_dataset=Samples(*work.data()), callbacks=[Marks(clock)])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return wrapped.model, trainer.state.global_step
