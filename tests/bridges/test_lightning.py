"""`stoker.lightning`: LightningModules train as with Lightning's Trainer, to the same bits; checkpoints load safely."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker.errors import InvalidArgument, WrongType
from stoker.lightning import make_learner

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside of Lightning
    import lightning


class Lit(lightning.LightningModule):
    """Two groups of parameters, a scheduler, and numbers that are logged."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"width": 8})
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("train_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)
        return nn.functional.cross_entropy(logits, y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log_dict(
            {"val_acc": (logits.argmax(1) == y).float().mean(), "val_loss": nn.functional.cross_entropy(logits, y)}
        )

    def configure_optimizers(self):
        groups = [
            {"params": self.body.parameters(), "lr": 0.05},
            {"params": self.head.parameters(), "weight_decay": 0.1},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.fixture(scope="module")
def columns():
    x = torch.randn(44, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def make(kind=Lit):
    torch.manual_seed(0)
    return kind()


@pytest.fixture(scope="module")
def trained(columns, tmp_path_factory):
    """A module trained by Lightning, and its checkpoint."""
    module, path = make(), tmp_path_factory.mktemp("lightning") / "last.ckpt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = dict.fromkeys(["logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"], False)
        trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", default_root_dir=path.parent, **quiet)
        trainer.fit(module, DataLoader(TensorDataset(*columns), batch_size=12))
        trainer.save_checkpoint(path)
    return module, path


def test_the_weights_are_those_of_lightnings_trainer_to_the_bit(trained, columns):
    learner = make_learner(make(), device="cpu")
    loader = stoker.data.Loader(columns, batch_size=12)
    fitted = learner.fit(loader, valid=columns, epochs=3, keep="last", show=False)
    for name, parameter in trained[0].named_parameters():
        assert torch.equal(parameter, fitted.model.get_parameter(name)), name
    assert len(fitted.history["train/acc"]) == 3
    logits = fitted.model(columns[0])
    accuracy, loss = (logits.argmax(1) == columns[1]).float().mean(), nn.functional.cross_entropy(logits, columns[1])
    assert fitted.history["valid/acc"][-1] == pytest.approx(accuracy.item())
    assert fitted.history["valid/loss"][-1] == pytest.approx(loss.item())
    assert "log" not in vars(fitted.model)


def test_weights_of_a_checkpoint_load_without_running_code(trained):
    module, path = trained
    assert torch.load(path, weights_only=False)["hyper_parameters"]["width"] == 8  # it holds more than weights
    loaded = stoker.load(make(), stoker.load_torch(path, key="state_dict"))
    assert all(torch.equal(loaded.state_dict()[name], each) for name, each in module.state_dict().items())


class UsesTrainer(Lit):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.trainer.max_epochs


class UsesIndex(Lit):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 == 0 else None


class ReturnsNothing(Lit):
    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 1.0)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (UsesTrainer, "UsesTrainer.training_step uses self.trainer, which is None without Lightning's Trainer"),
        (UsesIndex, "the step uses the value of batch_idx, which stoker does not pass"),
        (ReturnsNothing, 'ReturnsNothing.validation_step returned None and logged no loss as "val_loss"'),
    ],
)
def test_steps_that_need_the_trainer_are_errors_when_they_do(kind, text, columns):
    with pytest.raises(InvalidArgument, match=text):
        make_learner(make(kind)).fit(columns, valid=columns, epochs=1, show=False)


class OtherNames(Lit):
    def training_step(self, batch, number):
        return super().training_step(batch, number)

    def validation_step(self, batch, i, dataloader_idx=0):
        return super().validation_step(batch, i)


def test_arguments_of_steps_are_passed_by_position(columns):
    first, second = (make_learner(make(kind), seed=0).fit(columns, valid=0.25, epochs=1) for kind in (Lit, OtherNames))
    assert first.history["valid/loss"] == second.history["valid/loss"]


class Manual(Lit):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Hooked(Lit):
    def on_train_epoch_end(self): ...


class TwoOptimizers(Lit):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.body.parameters(), lr=0.1), torch.optim.SGD(self.head.parameters(), lr=0.1)]


class Plateau(Lit):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Manual, r"Manual optimizes by hand \(automatic_optimization=False\)"),
        (Hooked, r"Hooked.on_train_epoch_end would not be called by stoker; use callbacks"),
        (TwoOptimizers, "configure_optimizers returned 2 of them; expected one torch.optim.Optimizer"),
        (Plateau, r"callbacks.ReduceLROnPlateau"),
    ],
)
def test_modules_that_need_the_trainer_are_refused_at_once(kind, text):
    with pytest.raises(InvalidArgument, match=text):
        make_learner(make(kind))


def test_other_modules_are_refused():
    with pytest.raises(WrongType, match="takes an instance of a LightningModule, got Linear"):
        make_learner(nn.Linear(1, 1))
    with pytest.raises(WrongType, match="got the class Lit"):
        make_learner(Lit)
