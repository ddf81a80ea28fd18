"""Loading a run: its metrics, its weights into a model, and its result with the learner."""

import pytest
import torch
from torch import nn

import stoker
from stoker import Fitted, InvalidArgument, MissingFile, StateMismatch, WrongType, callbacks, load_for_inference, optim
from stoker import metrics as of_metrics
from tests.learner.fits import (
    Net,
    checkpoint_names,
    copy_state,
    damage,
    fit,
    killed_run,
    learner,
    line,
    list_files,
    result_of,
    same,
    samples,
    saved_checkpoints,
)

GIVEN = learner(metrics=[of_metrics.Accuracy()])


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_metrics_can_be_loaded_without_a_model(run):
    fitted = fit(run, of=GIVEN)
    before = list_files(run)
    loaded = Fitted.load(run)
    assert result_of(loaded, weights=False) == result_of(fitted, weights=False)
    assert repr(loaded).startswith("a model fitted: 3 epochs, 18 updates in ")
    assert "<pre" in loaded._repr_html_()
    for use in (lambda: loaded.model, lambda: loaded.predict(samples(4)), lambda: loaded.evaluate(samples(4))):
        with pytest.raises(InvalidArgument, match=r"loaded without a model: use Fitted.load\(run, learner\)"):
            use()
    with pytest.raises(InvalidArgument, match=r"without its data: use fit\(..., run=..., resume=True\)"):
        loaded.continue_(epochs=1)
    assert list_files(run) == before


def test_with_a_model_it_can_predict(run):
    fitted = fit(run, of=GIVEN)
    model = Net()
    loaded = Fitted.load(str(run), model)
    assert loaded.model is model and same(model, fitted.model)
    assert torch.equal(loaded.predict(samples(9)), fitted.predict(samples(9)))
    with pytest.raises(InvalidArgument, match="there is no loss"):
        loaded.evaluate(samples(9))


def test_with_the_learner_it_is_the_result_of_fit(run):
    fitted = fit(run, of=GIVEN)
    before = list_files(run)
    loaded = Fitted.load(run, GIVEN)
    assert result_of(loaded) == result_of(fitted) and repr(loaded) == repr(fitted)
    assert loaded.evaluate(samples(30)) == fitted.evaluate(samples(30))
    assert set(loaded.evaluate(samples(30), metrics=[of_metrics.TopKAccuracy(2)])) == {"loss", "top2_accuracy"}
    assert torch.equal(loaded.predict(samples(9)), fitted.predict(samples(9)))
    assert list_files(run) == before


def test_a_model_with_its_own_train_step_can_be_loaded(run):
    class Own(nn.Linear):
        def train_step(self, batch):
            return nn.functional.mse_loss(self(batch[0]), batch[1])

    given = stoker.Learner(Own, seed=0).hparams(in_features=3, out_features=1)
    fitted = given.fit(line(), epochs=2, run=run, show=False)
    for loaded in (Fitted.load(run, given), Fitted.load(run, Own(3, 1))):
        assert same(loaded.model, fitted.model) and loaded.evaluate(line()) == fitted.evaluate(line())


def test_a_killed_run_can_be_loaded(tmp_path):
    left, whole = killed_run(tmp_path, of=GIVEN)
    before = list_files(left)
    loaded = Fitted.load(left, GIVEN)
    assert (loaded.epochs, loaded.updates, loaded.stopped) == (2, 8, "")
    assert loaded.best.epoch == 1 and loaded.history["valid/loss"] == whole["history"]["valid/loss"][:1]
    assert repr(loaded).startswith("Net fitted: 1 epoch, 8 updates. The run has not ended\nbest: valid/loss")
    at_one = fit(epochs=1, of=GIVEN)
    assert same(loaded.model, at_one.model), "the best weights so far are those of the first epoch"
    assert list_files(left) == before
    damage(*(left / "checkpoints" / "00000008").glob("best*.safetensors"))
    with pytest.warns(UserWarning, match="this is 00000004 instead"):
        earlier = Fitted.load(left, GIVEN)
    assert (earlier.updates, earlier.best) == (4, None), "the newest complete one"


def test_a_running_run_can_be_loaded(run):
    seen = []

    def look(ctx):
        loaded = Fitted.load(run, Net())
        seen.append((loaded.epochs, loaded.updates, loaded.stopped, len(loaded.history["train/loss"])))
        assert not load_for_inference(run, Net()).training

    fit(run, callbacks=[callbacks.on(epoch_end=look)])
    assert seen == [(1, 4, "", 1), (2, 12, "", 2), (3, 16, "", 3)]


def test_a_run_without_a_complete_checkpoint_is_an_error(tmp_path, run):
    with pytest.raises(MissingFile, match="there is no run at"):
        Fitted.load(tmp_path / "nowhere")
    fit(run, checkpoint=False)
    with pytest.raises(MissingFile, match="there is no complete checkpoint in .*It was not saved, or ended too early"):
        Fitted.load(run, Net())
    left, _ = killed_run(tmp_path)
    for name in checkpoint_names(left):
        damage(left / "checkpoints" / name / "model.safetensors")
    with pytest.raises(MissingFile, match="(?s)there is no complete checkpoint.*00000008/model.*00000004/model"):
        load_for_inference(left, Net())


@pytest.mark.parametrize(
    "load", [lambda run: Fitted.load(run, GIVEN).model, lambda run: load_for_inference(run, Net())]
)
def test_a_damaged_newest_checkpoint_is_named_with_the_one_that_is_used(run, load):
    fit(run, of=GIVEN, checkpoint=stoker.Checkpoint(keep_last=3))
    *_, older, newest = checkpoint_names(run)
    damage(run / "checkpoints" / newest / "model.safetensors")
    with pytest.warns(UserWarning, match="a newer checkpoint") as caught:
        load(run)
    (warning,) = caught
    assert warning.filename == __file__
    first, problem, used = str(warning.message).split("\n  ")
    assert first == f"a newer checkpoint of {str(run)!r} can't be used" and problem.startswith(f"{newest}/")
    assert used == f"this is {older} instead: epoch 2, update 12"


def test_a_finished_run_whose_result_is_damaged_is_resumed_with_a_warning(run):
    expected = fit(run, of=GIVEN, checkpoint=stoker.Checkpoint(keep_last=3))
    damage(run / "checkpoints" / checkpoint_names(run)[-1] / "model.safetensors")
    again = fit(run, of=GIVEN, checkpoint=stoker.Checkpoint(keep_last=3))
    assert same(again.model, expected.model)
    assert any("a checkpoint was skipped" in event.text for event in again.record.events_of("warning"))


def test_only_learners_and_models_can_be_given(run):
    for given, described in ((5, "int"), (Net, "the class Net")):
        with pytest.raises(WrongType, match=f"a learner or a model to load its weights into; got {described}"):
            Fitted.load(run, given)


def test_a_model_that_does_not_match_is_rejected_and_does_not_change(run):
    fit(run)
    model = Net(classes=5)
    before = copy_state(model)
    with pytest.raises(StateMismatch) as caught:
        load_for_inference(run, model)
    assert "head.weight" in str(caught.value) and "[4, 12]" in str(caught.value) and "[5, 12]" in str(caught.value)
    assert same(model, before)
    with pytest.raises(StateMismatch, match="head.weight"):
        Fitted.load(run, nn.Linear(6, 4))


def schedule_free():
    import schedulefree

    return optim.wrap(schedulefree.AdamWScheduleFree)


@pytest.mark.parametrize(
    "keep",
    [{}, {"keep": "last"}, pytest.param({"valid": None}, marks=pytest.mark.soak)],
    ids=["best", "last", "no validation"],
)
@pytest.mark.parametrize(
    "settings", [dict, lambda: {"ema": 0.8}, lambda: {"optimizer": schedule_free()}], ids=["plain", "ema", "free"]
)
def test_the_weights_are_those_that_fit_returned(tmp_path, run, keep, settings):
    """The best, the average, the last, or what a schedule-free optimizer means: always `fitted.model`."""
    given = learner(lr=2e-2, **settings())
    fitted = fit(run, of=given, epochs=4, **keep)
    assert same(load_for_inference(run, Net()), fitted.model)
    assert result_of(Fitted.load(run, given)) == result_of(fitted) == result_of(fit(run, of=given, epochs=4, **keep))
    left, whole = killed_run(tmp_path, of=given, epochs=4, **keep)
    assert result_of(fit(left, of=given, epochs=4, **keep)) == whole


def test_a_checkpoint_has_the_last_weights_too(run):
    fit(run, of=learner(lr=0.1), epochs=6)
    loaded = Fitted.load(run, Net())
    assert loaded.best.epoch < 6
    last = fit(of=learner(lr=0.1), epochs=6, keep="last")
    assert not same(loaded.model, last.model)
    assert same(fit(run, of=learner(lr=0.1), epochs=6, keep="last").model, last.model)


def test_loaded_models_are_in_eval_mode(run):
    fit(run)
    for model in (load_for_inference(run, Net()), Fitted.load(run, Net()).model, Fitted.load(run, learner()).model):
        assert not any(module.training for module in model.modules())
        assert torch.equal(model(samples(5)[0]), model(samples(5)[0])), "no dropout"


def test_loading_does_not_freeze_parameters(run):
    fit(run, of=learner(lambda: stoker.freeze(Net(), "body")), keep="last")
    assert all(each.requires_grad for each in load_for_inference(run, Net()).parameters())


def test_compiled_and_plain_models_share_weights(run, tmp_path):
    compiled = torch.compile(Net(), backend="eager")
    fitted = fit(run, of=learner(compiled), epochs=1)
    plain = load_for_inference(run, Net())
    assert same(plain, compiled._orig_mod)
    fit(tmp_path / "plain", epochs=1)
    again = load_for_inference(tmp_path / "plain", torch.compile(Net(), backend="eager"))
    assert same(again._orig_mod, load_for_inference(tmp_path / "plain", Net()))
    assert fitted.epochs == 1
    with pytest.raises(StateMismatch, match="step: compiled before, eager now"):
        fit(run, epochs=2)
    assert saved_checkpoints(run)[-1].ended == "Completed 1 epochs"
