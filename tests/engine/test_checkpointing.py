"""When a fit saves a checkpoint: by its policy, on request of a callback, at its end, and after an exception."""

import pytest
import torch
from torch import nn

from stoker import Callback, Checkpoint, InvalidArgument, NoSuchMetric, NotFinite, callbacks, metrics
from stoker.checkpoint import Store
from stoker.record import Run
from tests.learner.fits import (
    Net,
    checkpoint_names,
    fit,
    killed_run,
    learner,
    result_of,
    samples,
    saved_checkpoints,
    stop_after,
    texts,
)

RARELY = Checkpoint(every="60 minutes", keep_last=99, background=False)  # saved only for other reasons


def places(run):
    """Where and why checkpoints were saved after the first one."""
    return [(each.epoch, each.batch, each.reason) for each in saved_checkpoints(run) if each.update]


def test_the_first_checkpoint_is_saved_before_the_first_update(tmp_path):
    """A disk that cannot be written to is reported at once, and unseeded weights are known."""
    seen = []
    look = callbacks.on(train_batch_begin=lambda ctx: seen.append(checkpoint_names(tmp_path / "run")))
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[look])
    assert set(map(tuple, seen)) == {("00000000",)}
    assert saved_checkpoints(tmp_path / "run")[0].reason == "the beginning"


def store_of(run):
    return Store(run / "checkpoints", run=Run.open(run).id)


def delete_last(run):
    store_of(run).delete(checkpoint_names(run)[-1])


# --- by its policy


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("epoch", [(1, 6, "every epoch"), (2, 6, "every epoch"), (3, 6, "the end")]),
        (7, [(2, 1, "every 7 updates"), (3, 2, "every 7 updates"), (3, 6, "the end")]),
        ("60 minutes", [(3, 6, "the end")]),
    ],
    ids=str,
)
def test_the_policy_says_how_often_to_save(tmp_path, every, expected, background):
    fitted = fit(tmp_path / "run", checkpoint=Checkpoint(every=every, keep_last=99, background=background))
    assert places(tmp_path / "run") == expected
    assert [event.extra["name"] for event in fitted.record.events_of("checkpoint")] == checkpoint_names(
        tmp_path / "run"
    )
    assert saved_checkpoints(tmp_path / "run")[-1].ended == "Completed 3 epochs"
    assert result_of(fitted) == result_of(fit())


def test_each_update_is_saved_once_with_accumulation(tmp_path):
    fit(tmp_path / "run", of=learner(accumulate=4), checkpoint=Checkpoint(every=1, keep_last=99, background=False))
    positions = [(epoch, batch) for epoch, batch, _ in places(tmp_path / "run")]
    assert positions == [(epoch, batch) for epoch in (1, 2, 3) for batch in (4, 6)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_keep_last_holds_at_any_moment(tmp_path, count):
    seen = []
    watch = callbacks.on(train_batch_begin=lambda ctx: seen.append(len(saved_checkpoints(tmp_path / "run"))))
    policy = Checkpoint(every=2, keep_last=count, background=False)
    fit(tmp_path / "run", checkpoint=policy, callbacks=[watch])
    assert max(seen) == count and seen == sorted(seen)
    assert [each.update for each in saved_checkpoints(tmp_path / "run")] == [14, 16, 18][-count:]


def test_keep_best_follows_the_direction_of_the_metric(tmp_path):
    """Of equal values the first is the best."""
    accurate = learner(metrics=[metrics.Accuracy()], lr=0.1)
    policy = Checkpoint(keep_last=1, keep_best="valid/accuracy")
    fitted = fit(tmp_path / "run", epochs=8, of=accurate, checkpoint=policy)
    history = fitted.history["valid/accuracy"]
    best = history.index(max(history)) + 1
    assert best < 8 and history[-1] < max(history), "the best epoch must not be the last one here"
    first, last = saved_checkpoints(tmp_path / "run")
    assert (first.epoch, last.epoch) == (best, 8)
    assert first.values["valid/accuracy"] == max(history)
    assert first.reason.startswith("every epoch; best valid/accuracy so far: ")


def test_keep_best_with_validations_inside_an_epoch(tmp_path):
    policy = Checkpoint(every="60 minutes", keep_last=1, keep_best="valid/loss", background=False)
    fitted = fit(tmp_path / "run", validate_every=2, of=learner(lr=0.1), checkpoint=policy)
    assert saved_checkpoints(tmp_path / "run")[0].update == fitted.best.update


def test_keep_best_of_a_training_metric_with_validations_inside_an_epoch(tmp_path):
    """A validation inside an epoch does not have the metric yet."""
    policy = Checkpoint(keep_last=1, keep_best=True)
    fitted = fit(tmp_path / "run", validate_every=2, monitor="train/loss", checkpoint=policy)
    assert saved_checkpoints(tmp_path / "run")[0].update == fitted.best.update


def test_keep_best_of_a_logged_value_needs_a_direction(tmp_path):
    log = callbacks.on(epoch_end=lambda ctx: ctx.log("heat", float(-abs(ctx.epoch - 2))))
    with pytest.raises(InvalidArgument, match="whether a low or a high 'heat' is better"):
        fit(tmp_path / "a", checkpoint=Checkpoint(keep_best="heat"), callbacks=[log])
    fit(tmp_path / "b", checkpoint=Checkpoint(keep_last=1, keep_best="heat", direction="max"), callbacks=[log])
    assert [each.epoch for each in saved_checkpoints(tmp_path / "b")] == [2, 3]


def test_keep_best_of_an_unknown_metric_is_an_error(tmp_path):
    custom = learner(metrics=[metrics.Accuracy()])
    with pytest.raises(NoSuchMetric) as caught:
        fit(tmp_path / "run", of=custom, checkpoint=Checkpoint(keep_best="valid/acc"))
    assert str(caught.value) == (
        "keep_best='valid/acc', but there is no such metric; did you mean 'valid/accuracy'? "
        "The metrics are: train/loss, valid/loss, train/accuracy, valid/accuracy"
    )
    with pytest.raises(NoSuchMetric, match="keep_best='mine', but there is no such metric"):
        fit(tmp_path / "own", of=custom, checkpoint=Checkpoint(keep_best="mine"))
    resumed = fit(tmp_path / "run", of=custom, checkpoint=Checkpoint(keep_best="valid/accuracy"))
    assert result_of(resumed) == result_of(fit(of=custom))


# --- on request of a callback


def save_in(hook):
    """A callback that requests a checkpoint in the first epoch, once."""

    def request(ctx):
        if ctx.epoch <= 1 and not ctx.state.get("requested"):
            ctx.state["requested"] = True
            ctx.save("because")

    return callbacks.on(**{hook: request})


@pytest.mark.parametrize(
    ("hook", "batch"),
    [
        ("train_batch_after_loss", 1),
        ("update", 1),
        ("valid_begin", 6),
        ("epoch_end", 6),
        pytest.param("epoch_begin", 1, marks=pytest.mark.soak),
        pytest.param("train_batch_begin", 1, marks=pytest.mark.soak),
        pytest.param("train_batch_end", 1, marks=pytest.mark.soak),
        pytest.param("train_end", 6, marks=pytest.mark.soak),
        pytest.param("validation", 6, marks=pytest.mark.soak),
    ],
)
def test_a_requested_checkpoint_is_saved_after_the_batch_or_the_epoch(tmp_path, hook, batch):
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[save_in(hook)])
    assert places(tmp_path / "run") == [(1, batch, "because"), (3, 6, "the end")]
    assert "checkpoint 0000000" in (tmp_path / "run" / "log.txt").read_text()
    delete_last(tmp_path / "run")
    assert result_of(fit(tmp_path / "run", checkpoint=RARELY)) == result_of(fit())


def test_a_requested_checkpoint_inside_an_accumulation_window_resumes(tmp_path):
    def request(ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 2):
            ctx.save("in a window")

    custom = learner(accumulate=4)
    run = tmp_path / "run"
    fit(run, of=custom, checkpoint=RARELY, callbacks=[callbacks.on(train_batch_end=request)])
    assert places(run)[0] == (2, 2, "in a window")
    assert store_of(run).read(saved_checkpoints(run)[1])["accumulators"] != {}
    delete_last(run)
    assert result_of(fit(run, of=custom, checkpoint=RARELY)) == result_of(fit(of=custom))


@pytest.mark.parametrize("settings", [{"run": None}, {"checkpoint": False}], ids=["no run", "checkpoint=False"])
def test_a_request_without_a_run_is_an_error(tmp_path, settings):
    run = settings.pop("run", tmp_path / "run")
    with pytest.raises(InvalidArgument, match="ctx.save has no run to write to: give fit run=..."):
        fit(run, callbacks=[save_in("epoch_end")], **settings)


def test_a_request_after_the_end_is_an_error(tmp_path):
    late = callbacks.on(fit_end=lambda ctx: ctx.save("too late"))
    with pytest.raises(InvalidArgument, match="call ctx.save before the fit has ended"):
        fit(tmp_path / "run", callbacks=[late])
    assert result_of(fit(tmp_path / "run")) == result_of(fit())


# --- at its end


def test_a_stop_inside_an_epoch_saves_the_position_and_the_result(tmp_path):
    """A longer fit continues from the position: it does not validate there."""
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[stop_after(2, 3, "enough")])
    _, position, outcome = saved_checkpoints(tmp_path / "run")
    assert (position.epoch, position.batch, position.reason, position.ended) == (2, 3, "stopped: enough", None)
    assert (outcome.ended, outcome.resumable, position.resumable) == ("enough", False, True)
    assert outcome.values["valid/loss"] > 0 and position.values == {}


def test_a_stop_at_the_end_of_an_epoch_saves_one_checkpoint(tmp_path):
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[stop_after(2, reason="enough")])
    _, outcome = saved_checkpoints(tmp_path / "run")
    assert (outcome.epoch, outcome.ended, outcome.resumable) == (2, "enough", True)


# --- after an exception


def raise_in(hook, epoch=2, batch=4):
    in_a_batch = hook.startswith("train_batch") or hook == "update"

    def fail(ctx):
        if ctx.epoch == epoch and (ctx.batch_number == batch or not in_a_batch):
            raise ValueError("boom")

    return callbacks.on(**{hook: fail})


@pytest.mark.parametrize(
    ("hook", "last"),
    [
        ("epoch_begin", (1, 6)),
        ("train_begin", (1, 6)),
        ("train_batch_begin", (2, 3)),
        ("train_batch_after_pred", (2, 3)),
        ("train_batch_after_loss", (2, 3)),
        ("train_batch_after_backward", (2, 3)),
        ("train_end", (2, 6)),
        ("valid_begin", (2, 6)),
        ("valid_batch_end", (2, 6)),
        ("validation", (2, 6)),
        ("epoch_end", (2, 6)),
    ],
)
def test_after_an_exception_the_last_good_state_is_saved(tmp_path, hook, last):
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", checkpoint=RARELY, callbacks=[raise_in(hook)])
    assert places(tmp_path / "run") == [(*last, "exception: ValueError")]
    assert result_of(fit(tmp_path / "run", checkpoint=RARELY)) == result_of(fit())


@pytest.mark.parametrize("hook", ["train_batch_after_step", "update", "train_batch_end"])
def test_an_exception_between_an_update_and_the_end_of_its_batch_saves_nothing(tmp_path, hook):
    """A run cannot resume inside a batch: the checkpoint before stays."""
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", callbacks=[raise_in(hook)])
    assert [each.reason for each in saved_checkpoints(tmp_path / "run")] == ["every 4 updates"] * 2
    assert any(
        "the weights had changed since the last batch was done: that state was not saved" in text
        for text in texts(Run.open(tmp_path / "run").record, "note")
    )
    assert result_of(fit(tmp_path / "run")) == result_of(fit())


def test_after_an_exception_inside_a_window_the_state_before_the_window_is_saved(tmp_path):
    custom = learner(accumulate=3)
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", of=custom, checkpoint=RARELY, callbacks=[raise_in("train_batch_begin", 2, 6)])
    assert places(tmp_path / "run") == [(2, 3, "exception: ValueError")]
    assert result_of(fit(tmp_path / "run", of=custom)) == result_of(fit(of=custom))


def test_random_numbers_of_the_failed_batch_are_drawn_again(tmp_path):
    def arguments(fails=False):
        def draw(ctx):
            torch.rand(3)
            if fails and (ctx.epoch, ctx.batch_number) == (2, 4):
                raise ValueError("boom")

        return {"checkpoint": RARELY, "callbacks": [callbacks.on(train_batch_begin=draw)]}

    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", **arguments(fails=True))
    assert result_of(fit(tmp_path / "run", **arguments())) == result_of(fit(tmp_path / "whole", **arguments()))


class Diverging(Net):
    """Its output is NaN in the ninth training batch, unless `diverges` is off."""

    transient = True
    diverges = True

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += self.training
        return super().forward(x) * (float("nan") if self.seen == 9 and self.diverges else 1.0)


def test_the_state_before_a_nan_is_saved(tmp_path, monkeypatch):
    custom = learner(Diverging)
    with pytest.raises(NotFinite, match="epoch 2, batch 3"):
        fit(tmp_path / "run", of=custom, checkpoint=RARELY)
    assert places(tmp_path / "run") == [(2, 2, "exception: NotFinite")]
    monkeypatch.setattr(Diverging, "diverges", False)
    assert result_of(fit(tmp_path / "run", of=custom)) == result_of(fit(of=learner(Diverging)))


def test_an_exception_in_on_fit_begin_saves_nothing(tmp_path):
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", callbacks=[raise_in("fit_begin", epoch=0)])
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert result_of(fit(tmp_path / "run")) == result_of(fit())


# --- state of callbacks and modules


class Counting(Callback):
    """Counts updates, and saves the count."""

    def __init__(self):
        self.count = 0

    def on_fit_begin(self, ctx):
        self.count = 0

    def on_update(self, ctx):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Other(Counting):
    pass


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([Counting, Other], [Counting, Other], [18, 18]),
        ([Counting, Other], [Other, Counting], [18, 18]),
        ([Counting, Other], [Other], [18]),
        ([Counting], [Other, Counting], [10, 18]),
        ([Counting, Counting], [Counting, Counting], [18, 18]),
        ([Counting], [Counting, Counting], [18, 10]),
    ],
    ids=["same", "reordered", "removed", "added", "two of a kind", "another of a kind"],
)
def test_callbacks_are_matched_by_name(tmp_path, before, now, expected):
    left, whole = killed_run(tmp_path, callbacks=[each() for each in before])
    created = [each() for each in now]
    resumed = fit(left, callbacks=created)
    assert result_of(resumed) == whole and [each.count for each in created] == expected
    dropped = ["the callback Counting is not there any more; its saved state is dropped"] if now == [Other] else []
    assert texts(resumed.record, "note") == dropped


class Unsaved(Callback):
    def __init__(self):
        self.count = 0

    def on_update(self, ctx):
        self.count += 1


class TransientCallback(Unsaved):
    transient = True


class CountingNet(Net):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class TransientNet(CountingNet):
    transient = True


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            {"callbacks": [Unsaved()]},
            "Unsaved changes `count`, which is not in its state, so a resumed run starts with its first value: give "
            "the callback state_dict and load_state_dict, or set transient = True in the class if that does no harm",
        ),
        ({"callbacks": [TransientCallback()]}, None),
        (
            {"of": learner(CountingNet)},
            "CountingNet changes `seen`, which is not in its state, so a resumed run starts with its first value: make "
            "it a buffer, give the module get_extra_state and set_extra_state, or set transient = True in the class if "
            "that does no harm",
        ),
        ({"of": learner(TransientNet)}, None),
        ({"callbacks": [Counting(), callbacks.EarlyStopping(), callbacks.ReduceLROnPlateau()]}, None),
    ],
    ids=["callback", "transient callback", "module", "transient module", "callbacks with a state"],
)
def test_a_warning_names_state_that_a_checkpoint_lacks(tmp_path, settings, warning):
    fitted = fit(tmp_path / "run", **settings)
    assert texts(fitted.record) == ([] if warning is None else [warning])


def test_without_a_run_there_is_no_such_warning():
    assert texts(fit(callbacks=[Unsaved()], of=learner(CountingNet)).record) == []


def test_ctx_state_is_restored_except_for_objects(tmp_path):
    class Odd:
        pass

    def count(ctx):
        ctx.state.setdefault("tensor", torch.zeros(2)).add_(1)
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        ctx.state["odd"], ctx.state["few"] = Odd(), torch.eye(2).to_sparse()

    seen = {}
    watch = callbacks.on(update=count, fit_end=lambda ctx: seen.update(ctx.state))
    left, _ = killed_run(tmp_path, callbacks=[watch])
    resumed = fit(left, callbacks=[watch])
    assert seen["count"] == 18 and seen["tensor"].tolist() == [18.0, 18.0]
    warnings = [text for text in texts(resumed.record) if "ctx.state" in text]
    assert warnings[0].startswith("ctx.state['odd'] is a Odd, which a checkpoint can't hold: a resumed run starts")
    assert {text.split(" is a ")[0] for text in warnings} == {"ctx.state['odd']", "ctx.state['few']"}


def test_extra_state_of_a_module_is_restored(tmp_path):
    class WithExtraState(CountingNet):
        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    custom = learner(WithExtraState)
    left, whole = killed_run(tmp_path, of=custom)
    resumed = fit(left, of=custom)
    assert result_of(resumed) == whole and texts(resumed.record) == []
    assert resumed.model.seen == fit(of=custom).model.seen


def test_a_fit_that_changes_nothing_is_saved(tmp_path):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return self.weight.expand(len(x), 4)

    fitted = fit(tmp_path / "run", of=learner(Constant, lr=0.0), data=samples(32))
    assert result_of(fitted) == result_of(fit(tmp_path / "run", of=learner(Constant, lr=0.0), data=samples(32)))
