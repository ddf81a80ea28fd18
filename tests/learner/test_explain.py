"""The explanation says what will happen, in order, and changes nothing."""

import pytest
import torch
from torch import nn

import stoker
from stoker import WrongType, callbacks, data, metrics, optim, schedule
from tests.engine.fits import Net, copied, learner, line, linear, same, samples


class Everywhere(callbacks.Callback):
    """Listens to every milestone there is."""

    for _name in callbacks.HOOK_NAMES:
        exec(f"def {_name}(self, ctx): pass")
    del _name


def test_everything_that_hangs_on_the_loop_is_named():
    given = learner(
        stoker.freeze(Net(), "body.0"),
        loss=nn.CrossEntropyLoss(),
        optimizer={"head": optim.SGD(momentum=0.9), "*": optim.AdamW()},
        lr={"*.bias": 1e-3, "*": schedule.cosine(1e-2, steps=80)},
        metrics=[metrics.Accuracy(on="valid")],
        clip_norm=1.0,
        clip_value=0.5,
        accumulate=4,
        ema=0.99,
        precision="fp16",
    )
    said = given.explain(
        samples(), valid=0.2, epochs=3, updates=50, batch_size=16, validate_every=5, callbacks=[Everywhere()]
    )
    for words in (
        "Net, 160 parameters, trained in place",
        "3 epochs or 50 updates, whichever is over first",
        "cpu, found",
        "fp16, inside fit only",
        "seed       3",
        "30 samples, held out for validation (seed 3)",
        "120 samples in 8 batches, shuffled by (seed 3, epoch)",
        "frozen",
        "SGD(momentum=0.9",
        "AdamW(",
        "cosine",
        "added up over 4 batches",
        "clip values to 0.5, clip the norm to 1",
        "decay 0.99",
        "CrossEntropyLoss(predictions, target)",
        "every 5 updates",
        "count loss, accuracy",
        "keep the weights if valid/loss is the best so far",
        "the best weights go into the model",
    ):
        assert words in said, f"{words!r} is not in:\n{said}"
    for milestone in callbacks.HOOK_NAMES:
        assert f"{milestone}: Everywhere" in said
    order = [said.index(f"◂ {milestone}:") for milestone in callbacks.HOOK_NAMES if "interrupt" not in milestone]
    assert order[:-3] == sorted(order[:-3])


def test_it_changes_nothing(tmp_path):
    model = Net()
    before, state = copied(model), torch.get_rng_state()
    given = learner(model, seed=None)
    first = given.explain(samples(), valid=0.2, epochs=1, run=tmp_path / "run", show=True)
    assert same(model, before) and torch.equal(torch.get_rng_state(), state)
    assert not (tmp_path / "run").exists()
    *rest, run = first.split("\n\n")
    assert given.explain(samples(), valid=0.2, epochs=1) == "\n\n".join(rest)
    assert run.startswith("Run\n")
    assert "drawn: give seed= to have it again" in first


def test_what_fit_would_refuse_is_refused():
    with pytest.raises(stoker.InvalidArgument, match="say how long to train"):
        linear().explain(line())
    with pytest.raises(WrongType, match="'epoch' is none; did you mean 'epochs'"):
        linear().explain(line(), epoch=3)
    with pytest.raises(stoker.NoSuchParameter):
        linear(lr={"wieght": 1, "*": 2}).explain(line(), epochs=1)


def test_a_stream_a_class_and_no_validation():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*line(), strict=True))

    said = stoker.Learner(lambda: nn.Linear(3, 1), loss=nn.MSELoss(), device="cpu").explain(Stream(), minutes=2)
    for words in ("made anew for every fit", "2 minutes", "a stream of unknown length", "cpu, named", "last weights"):
        assert words in said
    assert "validate" not in said
    rows = [(a, b) for a, b in zip(*line(), strict=True)]
    loader = data.Loader(rows, batch_size=4, workers=2, shuffle=5)
    assert "64 samples in 16 batches, shuffled by (seed 5, epoch), 2 workers" in linear().explain(loader, epochs=1)


def test_a_dataloader_and_a_step_of_the_models_own():
    class Own(nn.Linear):
        def train_step(self, batch):
            return self(batch[0]).mean()

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*line()), batch_size=8)
    said = stoker.Learner(Own(3, 1)).explain(loader, epochs=1)
    assert "Own.train_step(batch)" in said and "the loss that it gave" in said
