"""A run's outcome out of its directory: the numbers alone, with a model, with the learner; over or not."""

import pytest
import torch
from torch import nn

import stoker
from stoker import Fitted, InvalidArgument, MissingFile, StateMismatch, WrongType, callbacks, load_for_inference, optim
from stoker import metrics as of_metrics
from tests.learner.runs import came_out, damage, files, fit, killed, names, saved
from tests.engine.fits import Net, copied, learner, line, same, samples

GIVEN = learner(metrics=[of_metrics.Accuracy()])


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_the_numbers_alone_need_no_code(run):
    fitted = fit(run, of=GIVEN)
    before = files(run)
    loaded = Fitted.load(run)
    assert {**came_out(fitted), "weights": None} == {**came_out_of_numbers(loaded), "weights": None}
    assert repr(loaded).startswith("a model fitted: 3 epochs, 18 updates in ")
    assert "<table" in loaded._repr_html_()
    for asked in (lambda: loaded.model, lambda: loaded.predict(samples(4)), lambda: loaded.evaluate(samples(4))):
        with pytest.raises(
            InvalidArgument, match=r"loaded without its model, which is code: Fitted.load\(run, learner"
        ):
            asked()
    with pytest.raises(InvalidArgument, match=r"without its data: go on with fit\(..., run=..., resume=True\)"):
        loaded.continue_(epochs=1)
    assert files(run) == before


def came_out_of_numbers(loaded):
    history = loaded.history
    return {
        "history": {name: history[name] for name in history.columns},
        "best": loaded.best,
        "length": (loaded.epochs, loaded.updates),
        "stopped": loaded.stopped,
    }


def test_with_a_model_it_predicts(run):
    fitted = fit(run, of=GIVEN)
    model = Net()
    loaded = Fitted.load(str(run), model)
    assert loaded.model is model and same(model, fitted.model)
    assert torch.equal(loaded.predict(samples(9)), fitted.predict(samples(9)))
    with pytest.raises(InvalidArgument, match="there is no loss"):
        loaded.evaluate(samples(9))


def test_with_the_learner_it_is_the_fitted(run):
    fitted = fit(run, of=GIVEN)
    before = files(run)
    loaded = Fitted.load(run, GIVEN)
    assert came_out(loaded) == came_out(fitted) and repr(loaded) == repr(fitted)
    assert loaded.evaluate(samples(30)) == fitted.evaluate(samples(30))
    assert set(loaded.evaluate(samples(30), metrics=[of_metrics.TopKAccuracy(2)])) == {"loss", "top2_accuracy"}
    assert torch.equal(loaded.predict(samples(9)), fitted.predict(samples(9)))
    assert files(run) == before


def test_a_model_with_steps_of_its_own(run):
    class Own(nn.Linear):
        def train_step(self, batch):
            return nn.functional.mse_loss(self(batch[0]), batch[1])

    given = stoker.Learner(Own, seed=0).hparams(in_features=3, out_features=1)
    fitted = given.fit(line(), epochs=2, run=run, show=False)
    for loaded in (Fitted.load(run, given), Fitted.load(run, Own(3, 1))):
        assert same(loaded.model, fitted.model) and loaded.evaluate(line()) == fitted.evaluate(line())


def test_a_run_that_was_killed(tmp_path):
    left, whole = killed(tmp_path, of=GIVEN)
    before = files(left)
    loaded = Fitted.load(left, GIVEN)
    assert (loaded.epochs, loaded.updates, loaded.stopped) == (2, 8, "")
    assert loaded.best.epoch == 1 and loaded.history["valid/loss"] == whole["history"]["valid/loss"][:1]
    assert repr(loaded).startswith("Net fitted: 2 epochs, 8 updates. The run is not over\nbest: valid/loss")
    at_one = fit(epochs=1, of=GIVEN)
    assert same(loaded.model, at_one.model), "the best weights so far are those of the first epoch"
    assert files(left) == before
    damage(left / "checkpoints" / "00000008" / "best.safetensors")
    earlier = Fitted.load(left, GIVEN)
    assert (earlier.updates, earlier.best) == (4, None), "the newest that is whole"


def test_a_run_that_is_going_on(run):
    seen = []

    def look(ctx):
        loaded = Fitted.load(run, Net())
        seen.append((loaded.epochs, loaded.updates, loaded.stopped, len(loaded.history["train/loss"])))
        assert not load_for_inference(run, Net()).training

    fit(run, callbacks=[callbacks.on(epoch_end=look)])
    assert seen == [(1, 4, "", 1), (2, 12, "", 2), (3, 16, "", 3)]


@pytest.mark.parametrize("how", ["interrupted", "failed"])
def test_a_run_that_was_stopped_is_not_over(run, how):
    def stop(ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 4):
            raise KeyboardInterrupt if how == "interrupted" else ValueError

    with pytest.raises((KeyboardInterrupt, ValueError)):
        fit(run, callbacks=[callbacks.on(train_batch_begin=stop)])
    loaded = Fitted.load(run, Net())
    assert loaded.stopped == "" and loaded.epochs == 2


def test_nothing_to_load(tmp_path, run):
    with pytest.raises(MissingFile, match="there is no run at"):
        Fitted.load(tmp_path / "nowhere")
    fit(run, checkpoint=False)
    with pytest.raises(MissingFile, match="there is no whole checkpoint in .*It was not saved, or never came that far"):
        Fitted.load(run, Net())
    left, _ = killed(tmp_path)
    for name in names(left):
        damage(left / "checkpoints" / name / "model.safetensors")
    with pytest.raises(MissingFile, match="(?s)there is no whole checkpoint.*00000008/model.*00000004/model"):
        load_for_inference(left, Net())


@pytest.mark.parametrize(("given", "said"), [(5, "int"), (Net, "the class Net"), ("model", "str")], ids=str)
def test_what_is_no_learner_and_no_model(run, given, said):
    fit(run)
    with pytest.raises(WrongType, match=f"the learner or a model to put its weights into; got {said}"):
        Fitted.load(run, given)


@pytest.mark.parametrize("settings", [{}, {"keep": "last"}], ids=str)
def test_a_model_that_does_not_fit_stays_as_it_is(run, settings):
    fit(run, **settings)
    model = Net(classes=5)
    before = copied(model)
    with pytest.raises(StateMismatch) as caught:
        load_for_inference(run, model)
    assert "head.weight" in str(caught.value) and "[4, 12]" in str(caught.value) and "[5, 12]" in str(caught.value)
    assert same(model, before)
    with pytest.raises(StateMismatch, match="head.weight"):
        Fitted.load(run, nn.Linear(6, 4))


# --- which weights they are


def schedule_free():
    import schedulefree

    return optim.wrap(schedulefree.AdamWScheduleFree)


@pytest.mark.parametrize("keep", [{}, {"keep": "last"}, {"valid": None}], ids=["best", "last", "no validation"])
@pytest.mark.parametrize(
    "settings", [dict, lambda: {"ema": 0.8}, lambda: {"optimizer": schedule_free()}], ids=["plain", "ema", "free"]
)
def test_the_weights_are_those_that_fit_gave(tmp_path, run, keep, settings):
    """The best, the average, the last, or what a schedule-free optimizer means: always `fitted.model`."""
    given = learner(lr=2e-2, **settings())
    fitted = fit(run, of=given, epochs=4, **keep)
    assert same(load_for_inference(run, Net()), fitted.model)
    assert came_out(Fitted.load(run, given)) == came_out(fitted) == came_out(fit(run, of=given, epochs=4, **keep))
    left, whole = killed(tmp_path, of=given, epochs=4, **keep)
    assert came_out(fit(left, of=given, epochs=4, **keep)) == whole


def test_the_last_weights_are_in_the_checkpoint_too(run):
    """`keep="last"` on a run that kept the best: nothing of it is lost."""
    fit(run, of=learner(lr=0.1), epochs=6)
    loaded = Fitted.load(run, Net())
    assert loaded.best.epoch < 6
    last = fit(of=learner(lr=0.1), epochs=6, keep="last")
    assert not same(loaded.model, last.model)
    assert same(fit(run, of=learner(lr=0.1), epochs=6, keep="last").model, last.model)


def test_the_model_is_put_into_evaluation_mode_and_only_by_load_for_inference(run):
    fit(run)
    model = load_for_inference(run, Net())
    assert not any(module.training for module in model.modules())
    assert torch.equal(model(samples(5)[0]), model(samples(5)[0])), "no dropout"
    assert all(module.training for module in Fitted.load(run, Net()).model.modules())


def test_what_is_frozen_in_the_model_stays_its_own_business(run):
    fit(run, of=learner(lambda: stoker.freeze(Net(), "body")), keep="last")
    assert all(each.requires_grad for each in load_for_inference(run, Net()).parameters())


def test_of_a_compiled_model_into_a_plain_one_and_back(run, tmp_path):
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
    assert saved(run)[-1].ended == "Completed 1 epochs"
