"""Models with frozen parameters: what checkpoints hold, and what a fit returns."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stoker
from stoker import Callback, Checkpoint, Fitted, Learner, load_for_inference, optim
from stoker.callbacks import FreezeUntil
from stoker.errors import StateMismatch
from tests.checkpoint.quantised import Int8Weight
from tests.hooks import Crash, crash_at

X = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
DATA = X, X[:, :3].sum(1, keepdim=True).sin()
FINGERPRINT = Checkpoint(frozen="fingerprint", every=2, background=False)


class Classifier(nn.Module):
    """A pretrained body, which is frozen, and a head."""

    def __init__(self, seed=1, *, frozen=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh())
        self.head = nn.Linear(16, 1)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.body.parameters():
            nn.init.normal_(parameter, generator=generator)
            parameter.requires_grad_(not frozen)

    def forward(self, x):
        return self.head(self.body(x))


def learner(model=Classifier, **settings):
    return Learner(model, loss=nn.MSELoss(), optimizer=optim.AdamW(), **{"lr": 1e-2, "seed": 3} | settings)


def fit(learner, **arguments):
    defaults = {"valid": DATA, "epochs": 3, "batch_size": 16, "show": False}
    return learner.fit(DATA, **defaults | arguments)


def newest(run):
    return max(path for path in (run / "checkpoints").iterdir())


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# --- what is saved


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}, {"accumulate": 2}], ids=str)
def test_a_checkpoint_holds_what_training_changes(tmp_path, settings):
    run = tmp_path / "run"
    fitted = fit(learner(**settings), run=run, checkpoint=FINGERPRINT)
    parts = [path for path in newest(run).glob("*.safetensors") if path.stem in ("model", "best", "average")]
    names = {path.stem: set(load_file(path)) for path in parts}
    assert names.keys() == {"model", "best", *(["average"] if "ema" in settings else [])}
    averaged = {"weights.head.weight", "weights.head.bias"}
    assert names.pop("average", averaged) == averaged
    trained = {"head.weight", "head.bias", "body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
    for part in names.values():
        assert {name.removeprefix("parameters.").removeprefix("buffers.") for name in part} == trained
    frozen = json.loads((newest(run) / "state.json").read_text())["model"]["frozen"]
    assert list(frozen) == ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
    assert_equal(weights(fitted.model), weights(Fitted.load(run, learner(**settings)).model))


@pytest.mark.soak
def test_every_way_of_saving_gives_the_same_weights(tmp_path):
    """Frozen parameters that are left out change no bit of the result, with or without a run."""
    plain = fit(learner())
    for frozen in ("fingerprint", "save", "auto"):
        fitted = fit(learner(), run=tmp_path / frozen, checkpoint=Checkpoint(frozen=frozen))
        assert_equal(weights(fitted.model), weights(plain.model))
        assert fitted.history["valid/loss"] == plain.history["valid/loss"]


def test_a_large_frozen_part_is_left_out_by_default_and_the_user_is_told(tmp_path):
    def make():
        model = nn.Sequential(nn.Linear(8, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1))
        for layer in model[:2]:
            nn.init.constant_(layer.requires_grad_(False).weight, 0.01)
        return model

    run = tmp_path / "run"
    explained = learner(make).explain(DATA, epochs=1, run=run)
    assert 'without 67.3 MB of frozen parameters, only their fingerprints; Checkpoint(frozen="save")' in explained
    fitted = fit(learner(make), epochs=1, run=run)
    notes = [event.text for event in fitted.record.events_of("note")]
    assert any(
        "checkpoints leave out 67.3 MB of frozen parameters: resume and load this run with" in text for text in notes
    )
    assert sum(path.stat().st_size for path in newest(run).iterdir()) < 200_000


# --- resuming and loading


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}], ids=str)
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, settings):
    whole = fit(learner(**settings))
    with pytest.raises(Crash):
        fit(learner(**settings), run=tmp_path / "run", checkpoint=FINGERPRINT, callbacks=[crash_at(update=5)])
    resumed = fit(learner(**settings), run=tmp_path / "run", checkpoint=FINGERPRINT, resume=True)
    assert_equal(weights(resumed.model), weights(whole.model))
    assert resumed.history["train/loss"] == whole.history["train/loss"]


OTHER = (
    r"4 of these 4 have other values in this model than in the run: 'body.0.weight', .* and 1 more\. Create the model"
)


def test_a_model_with_other_frozen_weights_is_refused(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        fit(learner(), run=run, checkpoint=FINGERPRINT, callbacks=[crash_at(update=5)])
    with pytest.raises(StateMismatch, match=OTHER):
        fit(learner(lambda: Classifier(seed=2)), run=run, checkpoint=FINGERPRINT, resume=True)
    with pytest.raises(StateMismatch, match=OTHER):
        Fitted.load(run, learner(lambda: Classifier(seed=2)))
    with pytest.raises(StateMismatch, match=OTHER):
        load_for_inference(run, Classifier(seed=2))
    model = Classifier(seed=1, frozen=False)
    load_for_inference(run, model)  # whether they are frozen now does not matter
    assert_equal(weights(model), weights(Fitted.load(run, learner()).model))


def test_a_finished_run_is_returned_with_its_weights(tmp_path):
    first = fit(learner(), run=tmp_path / "run", checkpoint=FINGERPRINT)
    again = fit(learner(), run=tmp_path / "run", checkpoint=FINGERPRINT, resume=True)
    assert_equal(weights(again.model), weights(first.model))
    with pytest.raises(StateMismatch, match=OTHER):
        fit(learner(lambda: Classifier(seed=2)), run=tmp_path / "run", checkpoint=FINGERPRINT, resume=True)


def test_a_resumed_run_leaves_out_what_it_left_out_before(tmp_path):
    """A parameter that is in a checkpoint may have changed since the run started: it stays in the later ones."""
    run = tmp_path / "run"
    for frozen, expected in (("save", 0), ("fingerprint", 0)):
        fit(learner(), run=run, checkpoint=Checkpoint(frozen=frozen), resume=True, epochs=2 + (frozen != "save"))
        assert len(json.loads((newest(run) / "state.json").read_text())["model"].get("frozen", {})) == expected
    fit(learner(), run=tmp_path / "other", checkpoint=FINGERPRINT, epochs=2)
    fit(learner(), run=tmp_path / "other", checkpoint=Checkpoint(frozen="save"), resume=True, epochs=3)
    load_for_inference(tmp_path / "other", Classifier(seed=2))  # contains all weights now


@pytest.mark.soak
def test_continuing_starts_from_the_last_weights(tmp_path):
    fits = [fit(learner(), epochs=2), fit(learner(), epochs=2, run=tmp_path / "run", checkpoint=FINGERPRINT)]
    for fitted in fits:
        fitted.continue_(epochs=2, show=False)
    assert_equal(weights(fits[0].model), weights(fits[1].model))


# --- frozen parameters that change


class AveragedTeacher(nn.Module):
    """A teacher that follows the student by `.data`, which no version counter shows, as self-distillation does it."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 1), nn.Linear(8, 1).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())

    def forward(self, x):
        if self.training:
            for own, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                own.data.mul_(0.9).add_(other.data, alpha=0.1)
        return self.student(x) + 0.1 * self.teacher(x)


def test_a_frozen_parameter_that_changes_is_saved(tmp_path):
    whole = fit(learner(AveragedTeacher))
    with pytest.raises(Crash):
        fit(learner(AveragedTeacher), run=tmp_path / "run", checkpoint=FINGERPRINT, callbacks=[crash_at(update=5)])
    assert "parameters.teacher.weight" in load_file(newest(tmp_path / "run") / "model.safetensors")
    resumed = fit(learner(AveragedTeacher), run=tmp_path / "run", checkpoint=FINGERPRINT, resume=True)
    assert_equal(weights(resumed.model), weights(whole.model))


def test_the_best_weights_include_those_that_were_frozen_when_they_were_measured(tmp_path):
    """The first epoch is the best; later the body is trained, with a rate that ruins it."""
    results = []
    for frozen in ("save", "fingerprint"):
        fitted = fit(
            learner(lambda: Classifier(frozen=False), lr=lambda update: 1e-3 if update < 3 else 3.0),
            run=tmp_path / frozen,
            checkpoint=Checkpoint(frozen=frozen),
            callbacks=[FreezeUntil("body", epoch=2)],
        )
        assert fitted.best.epoch == 1
        results.append(weights(fitted.model))
        loaded = Fitted.load(tmp_path / frozen, learner(lambda: Classifier(frozen=False)))
        assert_equal(weights(loaded.model), results[-1])
        saved = load_file(newest(tmp_path / frozen) / "model.safetensors")
        assert "parameters.body.0.weight" in saved, "it was trained"
        assert not torch.equal(saved["parameters.body.0.weight"], results[-1]["body.0.weight"])
    assert_equal(*results)
    assert torch.equal(results[1]["body.0.weight"], Classifier().body[0].weight)


def test_best_weights_that_lack_a_changed_parameter_are_reported(tmp_path):
    class Ruin(Callback):
        def on_epoch_begin(self, ctx):
            if ctx.epoch == 2:
                ctx.model.head.weight.data.mul_(100)
                ctx.model.body[0].weight.data.mul_(100)

    fitted = fit(learner(), run=tmp_path / "run", checkpoint=FINGERPRINT, callbacks=[Ruin()])
    assert fitted.best.epoch == 1
    (warning,) = [event.text for event in fitted.record.events_of("warning")]
    assert warning.startswith("body.0.weight changed after the best weights were copied, although frozen: of these")


# --- quantised weights


class Quantised(nn.Module):
    """A frozen layer with 8-bit weights, and an adapter, as in QLoRA."""

    def __init__(self, seed=1):
        super().__init__()
        weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(Int8Weight.quantise(weight), requires_grad=False)
        self.adapter = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Dropout(0.1), nn.Linear(2, 8, bias=False))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.tanh(x @ self.weight.t() + self.adapter(x)))


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}, {"precision": "bf16"}], ids=str)
def test_a_quantised_base_trains_and_resumes_to_the_same_bits(tmp_path, settings):
    make = learner(Quantised, **settings)
    assert "Quantised" in make.explain(DATA, valid=DATA, epochs=3)
    whole = fit(make)
    with pytest.raises(Crash):
        fit(make, run=tmp_path / "run", callbacks=[crash_at(update=5)])
    resumed = fit(make, run=tmp_path / "run", resume=True)
    trained = {name: value for name, value in resumed.model.state_dict().items() if name != "weight"}
    assert_equal(trained, {name: value for name, value in whole.model.state_dict().items() if name != "weight"})
    assert isinstance(resumed.model.weight, Int8Weight)
    assert resumed.evaluate(DATA) == whole.evaluate(DATA)
    assert torch.equal(resumed.predict(DATA), whole.predict(DATA))
    with pytest.raises(StateMismatch, match="1 of these 1 have other values .* 'weight'"):
        load_for_inference(tmp_path / "run", Quantised(seed=2))


def test_a_view_of_a_quantised_model_computes_the_same():
    model = Quantised()
    assert torch.equal(stoker.valid(model)(X), model.eval()(X))
    assert "Quantised" in str(stoker.summary(model, X))


def test_quantised_weights_cannot_be_saved(tmp_path):
    with pytest.raises(stoker.errors.CheckpointFailed, match='Int8Weight, a subclass.*unless it has frozen="save"'):
        fit(learner(Quantised), run=tmp_path / "run", checkpoint=Checkpoint(frozen="save"))
