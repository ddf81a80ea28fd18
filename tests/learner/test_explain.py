"""Descriptions of a fit: explain, the facts of a run, and the first event."""

import importlib.metadata
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Checkpoint, WrongType, callbacks, data, metrics, optim, schedule
from tests.learner.fits import EVERY, Net, copy_state, fit, killed_run, learner, line, linear, list_files, same, samples


class Everywhere(callbacks.Callback):
    """Defines every hook."""

    for _name in callbacks.HOOK_NAMES:
        exec(f"def {_name}(self, ctx): pass")
    del _name


class Own(nn.Linear):
    def train_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])


def test_explain_names_everything_that_the_loop_does():
    given = learner(
        stoker.freeze(Net(), "body.0"),
        loss=nn.CrossEntropyLoss(),
        optimizer={"head": optim.SGD(momentum=0.9), "*": optim.AdamW()},
        lr={"*.bias": 1e-3, "*": schedule.cosine(1e-2, updates=80)},
        metrics=[metrics.Accuracy(on="valid")],
        clip_norm=1.0,
        clip_value=0.5,
        accumulate=4,
        ema=0.99,
        precision="fp16",
    )
    text = given.explain(
        samples(), valid=0.2, epochs=3, updates=50, batch_size=16, validate_every=5, callbacks=[Everywhere()]
    )
    for words in (
        "Net, 160 parameters, trained in place",
        "3 epochs or 50 updates, whichever comes first",
        "cpu, chosen",
        "fp16, inside fit only",
        "seed       3",
        "30 samples, held out for validation (seed 3)",
        "120 samples in 8 batches, shuffled by (seed 3, epoch)",
        "frozen",
        "SGD(momentum=0.9",
        "AdamW(",
        "cosine",
        "accumulated over 4 batches",
        "clip values to 0.5, clip the norm to 1",
        "decay 0.99",
        "CrossEntropyLoss(predictions, targets)",
        "every 5 updates",
        "update loss, accuracy",
        "keep the weights if valid/loss is the lowest so far",
        "the best weights are loaded into the model",
    ):
        assert words in text, f"{words!r} is not in:\n{text}"
    for name in callbacks.HOOK_NAMES:
        assert f"{name}: Everywhere" in text
    order = [text.index(f"◂ {name}:") for name in callbacks.HOOK_NAMES if "interrupt" not in name]
    assert order[:-3] == sorted(order[:-3])


def test_explain_changes_nothing(tmp_path):
    model = Net()
    before, state = copy_state(model), torch.get_rng_state()
    given = learner(model, seed=None)
    text = given.explain(samples(), valid=0.2, epochs=1, run=tmp_path / "run", show=True)
    assert same(model, before) and torch.equal(torch.get_rng_state(), state)
    assert not (tmp_path / "run").exists()
    *rest, run = text.split("\n\n")
    assert given.explain(samples(), valid=0.2, epochs=1) == "\n\n".join(rest)
    assert run.startswith("Run\n") and "drawn at random: give seed=" in text


def test_explain_rejects_what_fit_rejects():
    with pytest.raises(stoker.InvalidArgument, match="say how long to train"):
        linear().explain(line())
    with pytest.raises(WrongType, match="'epoch' is not one; did you mean 'epochs'"):
        linear().explain(line(), epoch=3)
    with pytest.raises(stoker.NoSuchParameter):
        linear(lr={"wieght": 1, "*": 2}).explain(line(), epochs=1)


def test_explain_describes_streams_workers_classes_and_own_steps():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*line(), strict=True))

    text = stoker.Learner(lambda: nn.Linear(3, 1), loss=nn.MSELoss(), device="cpu").explain(Stream(), minutes=2)
    for words in ("created for every fit", "2 minutes", "a stream of unknown length", "cpu, given", "last weights"):
        assert words in text
    assert "validate" not in text
    rows = [(a, b) for a, b in zip(*line(), strict=True)]
    loader = data.Loader(rows, batch_size=4, workers=2, shuffle=5)
    assert "64 samples in 16 batches, shuffled by (seed 5, epoch), 2 workers" in linear().explain(loader, epochs=1)
    assert "Own.train_step(batch)" in linear(model=Own(3, 1), loss=None).explain(line(), epochs=1)


def explain_run(run, of=None, **arguments):
    given = learner(lr=schedule.cosine(1e-2, updates=80)) if of is None else of
    defaults = {"epochs": 3, "valid": samples(40), "batch_size": 16, "run": run, "resume": True, "checkpoint": EVERY}
    *_, last = given.explain(samples(96), **{**defaults, **arguments}).split("\n\n")
    title, state, saving = last.split("\n")
    assert title == "Run" and state.startswith(f"  {run}: ")
    return state.removeprefix(f"  {run}: "), saving.removeprefix("  ")


def test_explain_says_whether_a_run_starts_continues_or_is_finished(tmp_path):
    run = tmp_path / "run"
    assert explain_run(run)[0] == "is new" and not run.exists()
    left, _ = killed_run(tmp_path, name="run")
    before = list_files(left)
    assert explain_run(run)[0] == "continues from checkpoint 00000008: epoch 2, batch 2, update 8"
    assert explain_run(run, resume=False)[0] == "already contains a run: fit raises an error; resume=True continues it"
    changed = "was started with other settings (order: 3 before, 4 now; seed: 3 before, 4 now): fit raises an error"
    assert explain_run(run, of=learner(seed=4))[0] == changed
    assert explain_run(run, of=learner(seed=4), resume="force")[0].startswith("continues from checkpoint 00000008")
    assert list_files(left) == before
    fit(run)
    finished = "is finished (Completed 3 epochs): fit returns its result and trains nothing"
    assert explain_run(run)[0] == explain_run(run, epochs=2)[0] == finished
    assert explain_run(run, epochs=4)[0] == "continues from checkpoint 00000018: epoch 3, batch 6, update 18"


def test_explain_says_how_a_run_is_saved(tmp_path):
    def saving(checkpoint):
        return explain_run(tmp_path / "run", checkpoint=checkpoint)[1]

    assert saving(None) == "saved every epoch and at the end, by a thread; kept: the last 2"
    assert saving(EVERY) == "saved every 4 updates and at the end; kept: the last 2"
    timed = Checkpoint(every="10 minutes", keep_last=1, keep_best="valid/loss")
    kept = "kept: the last 1, and the best by valid/loss"
    assert saving(timed) == f"saved every 10 minutes and at the end, by a thread; {kept}"
    assert saving(False) == "never saved (checkpoint=False), so it cannot be resumed"


def test_a_run_has_its_facts_and_config(tmp_path):
    given = linear(seed=11, precision="bf16")
    given.fit(line(), valid=0.25, epochs=2, run=tmp_path / "run", config={"width": 3}, show=False)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["seed"] == 11 and facts["device"] == "cpu" and facts["precision"] == "bf16"
    assert facts["model"] == "Linear" and facts["optimizer"].startswith("SGD")
    assert facts["versions"]["torch"] == importlib.metadata.version("torch")
    assert any("4 parameters" in each for each in facts["plan"])
    assert any("held out for validation (seed 11)" in each for each in facts["plan"])
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"width": 3}
    linear(seed=None).fit(line(), epochs=1, run=tmp_path / "drawn", show=False)
    seed = json.loads((tmp_path / "drawn" / "run.json").read_text())["seed"]
    assert stoker.Record.open(tmp_path / "drawn").events_of("begin")[0].extra["seed"] == seed


def test_a_run_has_the_settings_of_its_learner(tmp_path):
    class Wide(nn.Linear):
        def __init__(self, width, act):
            super().__init__(width, 1)

    given = stoker.Learner(Wide, loss=nn.MSELoss(), optimizer=optim.SGD(), lr=0.5, ema=0.9, clip_norm=1, seed=3)
    given = given.hparams(width=3, act=nn.Tanh())
    given.fit(line(), epochs=2, batch_size=16, run=tmp_path / "run", show=False)
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings.pop("optimizer").startswith("SGD(")
    assert settings == {
        "epochs": 2,
        "batch_size": 16,
        "accumulate": 1,
        "lr": 0.5,
        "loss": "MSELoss()",
        "clip_norm": 1,
        "precision": "fp32",
        "ema": 0.9,
        "seed": 3,
        "step": "eager",
        "keep": "best",
        "on_nan": "stop",
        "hparams": {"width": 3, "act": "Tanh()"},
    }
    linear(lr=schedule.cosine(0.1, updates=4)).fit(line(), epochs=1, run=tmp_path / "other", show=False)
    settings = json.loads((tmp_path / "other" / "run.json").read_text())["settings"]
    assert settings["lr"] == "schedule.cosine(0.1, updates=4)" and "hparams" not in settings


def test_the_first_event_describes_the_fit():
    given = linear(metrics=[metrics.MAE()])
    record = given.fit(line(), valid=line(), epochs=2, batch_size=16, validate_every=3, show=False).record
    assert record.events[0].kind == "begin"
    extra = dict(record.events[0].extra)
    assert extra.pop("plan") and extra.pop("seed") == 0
    assert extra == {
        "epochs": 2,
        "updates": None,
        "minutes": None,
        "batches": 4,
        "validate_every": 3,
        "metrics": {"loss": {"direction": "min", "unit": ""}, "mae": {"direction": "min", "unit": ""}},
        "monitor": "valid/loss",
        "valid": ["valid"],
        "model": "Linear",
        "parameters": 4,
        "device": "cpu",
    }


def test_events_are_recorded_in_order_and_nothing_is_written_without_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = linear().fit(line(), valid=line(), epochs=2, show=False)
    assert list(tmp_path.iterdir()) == []
    kinds = [event.kind for event in result.record.events if event.kind != "progress"]
    assert kinds == ["begin", *["train", "valid", "epoch"] * 2, "stop", "end"]
    end = result.record.events[-1].extra
    assert (end["epochs"], end["updates"], end["best"]["epoch"], end["skipped"]) == (2, 4, 2, 0)


def test_the_plan_says_that_fit_chose_a_fused_implementation():
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    note = "(torch's fused implementation, which rounds differently; fused=False gives torch's default)"
    for config, text in (
        (optim.Adam(), f"optimizer  Adam(fused=True) {note}"),
        (optim.Adam(fused=False), "optimizer  Adam(fused=False)"),
        (optim.Adam(fused=True), "optimizer  Adam(fused=True)"),
        ({"bias": optim.SGD(), "*": optim.RMSprop()}, f"optimizer  {{'bias': SGD(fused=True), '*': RMSprop()}} {note}"),
    ):
        fitted = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), optimizer=config).fit((x, y), epochs=1, show=False)
        assert text in fitted.plan


@pytest.mark.parametrize("fused", [False, True])
def test_fit_computes_the_bits_of_the_implementation_that_the_user_chose(fused):
    x, y = torch.randn(64, 9), torch.randn(64, 1)
    ours, theirs = nn.Linear(9, 1), nn.Linear(9, 1)
    theirs.load_state_dict(ours.state_dict())
    learner = stoker.Learner(ours, loss=nn.MSELoss(), optimizer=optim.Adam(fused=fused), lr=0.01)
    learner.fit(data.Loader((x, y), batch_size=8), epochs=3, show=False)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, fused=fused)
    for inputs, targets in [*zip(x.split(8), y.split(8), strict=True)] * 3:
        optimizer.zero_grad()
        nn.functional.mse_loss(theirs(inputs), targets).backward()
        optimizer.step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
