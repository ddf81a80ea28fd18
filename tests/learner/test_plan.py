"""What was decided: in the run's facts, in the first event, in words."""

import importlib.metadata
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import metrics, optim
from tests.engine.fits import line, linear


def test_the_run_knows_what_ran(tmp_path):
    given = linear(seed=11, precision="bf16")
    given.fit(line(), valid=0.25, epochs=2, run=tmp_path / "run", config={"width": 3}, show=False)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["seed"] == 11 and facts["device"] == "cpu" and facts["precision"] == "bf16"
    assert facts["model"] == "Linear" and facts["optimizer"].startswith("SGD")
    assert facts["versions"]["torch"] == importlib.metadata.version("torch")
    assert any("4 parameters" in line for line in facts["plan"])
    assert any("held out for validation (seed 11)" in line for line in facts["plan"])
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"width": 3}


def test_the_run_knows_what_the_learner_was_told(tmp_path):
    class Wide(nn.Linear):
        def __init__(self, width, act):
            super().__init__(width, 1)

    given = stoker.Learner(Wide, loss=nn.MSELoss(), optimizer=optim.SGD(), lr=0.5, ema=0.9, clip_norm=1, seed=3)
    given = given.hparams(width=3, act=nn.Tanh())
    given.fit(line(), epochs=2, batch_size=16, run=tmp_path / "run", show=False)
    told = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert told.pop("optimizer").startswith("SGD(")
    assert told == {
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
    linear(lr=stoker.schedule.cosine(0.1, steps=4)).fit(line(), epochs=1, run=tmp_path / "other", show=False)
    told = json.loads((tmp_path / "other" / "run.json").read_text())["settings"]
    assert told["lr"] == "schedule.cosine(0.1, steps=4)" and "hparams" not in told


def test_a_drawn_seed_is_a_fact_too(tmp_path):
    linear(seed=None).fit(line(), epochs=1, run=tmp_path / "run", show=False)
    seed = json.loads((tmp_path / "run" / "run.json").read_text())["seed"]
    assert stoker.Record.open(tmp_path / "run").events_of("begin")[0].extra["seed"] == seed


def test_a_run_that_is_there_is_refused_and_the_model_left_alone(tmp_path):
    given = linear()
    given.fit(line(), epochs=1, run=tmp_path / "run", show=False)
    before, events = given._spec.model.weight.clone(), (tmp_path / "run" / "events.jsonl").read_bytes()
    with pytest.raises(stoker.RunExists, match="already holds a run"):
        given.fit(line(), epochs=1, run=tmp_path / "run", show=False)
    assert torch.equal(given._spec.model.weight, before)
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == events


def test_nothing_is_written_where_no_run_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    linear().fit(line(), valid=0.2, epochs=1, show=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("every", "told"), [("epoch", "epoch"), (3, 3)])
def test_the_first_event(every, told):
    given = linear(metrics=[metrics.MAE()])
    record = given.fit(line(), valid=line(), epochs=2, batch_size=16, validate_every=every, show=False).record
    first = record.events[0]
    assert first.kind == "begin"
    extra = dict(first.extra)
    assert extra.pop("plan") and extra.pop("seed") == 0
    assert extra == {
        "epochs": 2,
        "updates": None,
        "minutes": None,
        "batches": 4,
        "validate_every": told,
        "metrics": {"loss": {"direction": "min", "unit": ""}, "mae": {"direction": "min", "unit": ""}},
        "monitor": "valid/loss",
        "model": "Linear",
        "parameters": 4,
        "device": "cpu",
    }


def test_the_order_of_events():
    result = linear().fit(line(), valid=line(), epochs=2, show=False)
    kinds = [event.kind for event in result.record.events if event.kind != "progress"]
    assert kinds == ["begin", *["train", "valid", "epoch"] * 2, "stop", "end"]
    end = result.record.events[-1].extra
    assert (end["epochs"], end["updates"], end["best"]["epoch"], end["skipped"]) == (2, 4, 2, 0)


def test_a_loss_that_is_not_used_is_told():
    class Own(nn.Linear):
        def train_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

    assert "loss= is not used" in linear(model=Own(3, 1)).explain(line(), epochs=1)
    assert "loss= is not used" not in linear().explain(line(), epochs=1)
