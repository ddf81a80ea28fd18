"""When a fit is saved: as the policy says, when a hook asks, when it ends, and as it last was after an exception."""

import pytest
import torch
from torch import nn

import stoker
from stoker import Callback, Checkpoint, InvalidArgument, NoSuchMetric, NotFinite, callbacks, metrics
from stoker.checkpoint import Store
from stoker.record import Run
from tests.engine.fits import Net, learner, samples
from tests.learner.fits import checkpoint_names, fit, killed_run, result_of, saved_checkpoints, stop_after, texts

RARELY = Checkpoint(every="60 minutes", keep_last=99, background=False)  # where it is due for other reasons


BEGINNING = (0, 0, "the beginning")


def places(run):
    """Where and why it was saved, after the beginning."""
    found = [(each.epoch, each.batch, each.reason) for each in saved_checkpoints(run)]
    return [place for place in found if place != BEGINNING]


def test_it_is_saved_before_the_first_update(tmp_path):
    """What can't be written is known at once, and weights that nobody seeded can be begun with again."""
    seen = []
    look = callbacks.on(train_batch_begin=lambda ctx: seen.append(checkpoint_names(tmp_path / "run")))
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[look])
    assert set(map(tuple, seen)) == {("00000000",)}
    assert saved_checkpoints(tmp_path / "run")[0].reason == "the beginning"


def state_in(run, name=None):
    store = Store(run / "checkpoints", run=Run.open(run).id)
    found = [each for each in store.saved() if name is None or each.name == name]
    return store.read(found[-1])


# --- as the policy says


@pytest.mark.parametrize("background", [False, True], ids=["here", "in the background"])
@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("epoch", [(1, 6, "every epoch"), (2, 6, "every epoch"), (3, 6, "the end")]),
        (7, [(2, 1, "every 7 updates"), (3, 2, "every 7 updates"), (3, 6, "the end")]),
        ("60 minutes", [(3, 6, "the end")]),
    ],
    ids=str,
)
def test_every(tmp_path, every, expected, background):
    fitted = fit(tmp_path / "run", checkpoint=Checkpoint(every=every, keep_last=99, background=background))
    assert places(tmp_path / "run") == expected
    assert [event.extra["name"] for event in fitted.record.events_of("checkpoint")] == checkpoint_names(
        tmp_path / "run"
    )
    assert saved_checkpoints(tmp_path / "run")[-1].ended == "Completed 3 epochs"
    assert result_of(fitted) == result_of(fit()), "saving leaves no trace in the training"


def test_every_few_updates_with_windows_saves_each_update_once(tmp_path):
    fit(tmp_path / "run", of=learner(accumulate=4), checkpoint=Checkpoint(every=1, keep_last=99, background=False))
    assert [(each.epoch, each.batch) for each in saved_checkpoints(tmp_path / "run")[1:]] == [
        (1, 4),
        (1, 6),
        (2, 4),
        (2, 6),
        (3, 4),
        (3, 6),
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_are_kept_at_any_moment(tmp_path, count):
    seen = []
    watch = callbacks.on(train_batch_begin=lambda ctx: seen.append(len(saved_checkpoints(tmp_path / "run"))))
    policy = Checkpoint(every=2, keep_last=count, background=False)
    fit(tmp_path / "run", checkpoint=policy, callbacks=[watch])
    assert max(seen) == count and seen == sorted(seen)
    assert [each.update for each in saved_checkpoints(tmp_path / "run")] == [14, 16, 18][-count:]


def test_the_best_by_a_number_of_which_more_is_better(tmp_path):
    """The first of equal ones, in the direction that the metric declares; beside the last."""
    given = learner(metrics=[metrics.Accuracy()], lr=0.1)
    policy = Checkpoint(keep_last=1, keep_best="valid/accuracy")
    fitted = fit(tmp_path / "run", epochs=8, of=given, checkpoint=policy)
    history = fitted.history["valid/accuracy"]
    best = history.index(max(history)) + 1
    assert best < 8 and history[-1] < max(history), "else this would test nothing"
    kept = saved_checkpoints(tmp_path / "run")
    assert [each.epoch for each in kept] == [best, 8]
    assert kept[0].values["valid/accuracy"] == max(history)
    assert kept[0].reason.startswith("every epoch; best valid/accuracy so far: ")


def test_the_best_in_between_two_epochs(tmp_path):
    policy = Checkpoint(every="60 minutes", keep_last=1, keep_best="valid/loss", background=False)
    fitted = fit(tmp_path / "run", validate_every=2, of=learner(lr=0.1), checkpoint=policy)
    assert saved_checkpoints(tmp_path / "run")[0].update == fitted.best.update


def test_the_best_by_a_number_of_ones_own_needs_a_direction(tmp_path):
    log = callbacks.on(epoch_end=lambda ctx: ctx.log("heat", float(-abs(ctx.epoch - 2))))
    with pytest.raises(InvalidArgument, match="whether a low or a high 'heat' is better"):
        fit(tmp_path / "a", checkpoint=Checkpoint(keep_best="heat"), callbacks=[log])
    fit(tmp_path / "b", checkpoint=Checkpoint(keep_last=1, keep_best="heat", direction="max"), callbacks=[log])
    assert [each.epoch for each in saved_checkpoints(tmp_path / "b")] == [2, 3]


def test_a_number_that_there_is_not(tmp_path):
    given = learner(metrics=[metrics.Accuracy()])
    with pytest.raises(NoSuchMetric) as caught:
        fit(tmp_path / "run", of=given, checkpoint=Checkpoint(keep_best="valid/acc"))
    assert str(caught.value) == (
        "keep_best='valid/acc', but there is no such metric; did you mean 'valid/accuracy' or 'valid/loss'? "
        "The metrics are: valid/loss, valid/accuracy"
    )
    with pytest.raises(NoSuchMetric, match="keep_best='mine': there is no such metric"):  # a hook might have logged it
        fit(tmp_path / "own", of=given, checkpoint=Checkpoint(keep_best="mine"))
    resumed = fit(tmp_path / "run", of=given, checkpoint=Checkpoint(keep_best="valid/accuracy"))
    assert result_of(resumed) == result_of(fit(of=given)), "spelt right, the run goes on"


# --- when a hook asks


def asking(**at):
    """Asks for a checkpoint in a hook of the first epoch, once."""

    def ask(ctx):
        if ctx.epoch <= 1 and not ctx.state.get("asked"):
            ctx.state["asked"] = True
            ctx.save("because")

    return callbacks.on(**dict.fromkeys(at, ask))


@pytest.mark.parametrize(
    ("hook", "batch"),
    [
        *(("epoch_begin", 1), ("train_batch_begin", 1), ("train_batch_after_loss", 1)),
        *(("update", 1), ("train_batch_end", 1), ("train_end", 6), ("valid_begin", 6), ("validation", 6)),
        ("epoch_end", 6),
    ],
)
def test_what_a_hook_asks_for_is_saved_after_the_batch_or_the_epoch(tmp_path, hook, batch):
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[asking(**{hook: True})])
    assert places(tmp_path / "run") == [(1, batch, "because"), (3, 6, "the end")]
    assert "checkpoint 0000000" in (tmp_path / "run" / "log.txt").read_text()
    left = tmp_path / "run"
    stoker.checkpoint.Store(left / "checkpoints", run=Run.open(left).id).delete(checkpoint_names(left)[-1])
    assert result_of(fit(left, checkpoint=RARELY)) == result_of(fit())


def test_in_the_middle_of_a_window_too(tmp_path):
    def ask(ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 2):
            ctx.save("in a window")

    given = learner(accumulate=4)
    run = tmp_path / "run"
    fit(run, of=given, checkpoint=RARELY, callbacks=[callbacks.on(train_batch_end=ask)])
    assert places(run)[0] == (2, 2, "in a window")
    assert list(state_in(run, checkpoint_names(run)[1])["window"]) != []
    Store(run / "checkpoints", run=Run.open(run).id).delete(checkpoint_names(run)[-1])
    assert result_of(fit(run, of=given, checkpoint=RARELY)) == result_of(fit(of=given))


@pytest.mark.parametrize("settings", [{"run": None}, {"checkpoint": False}], ids=["no run", "checkpoint=False"])
def test_there_has_to_be_something_to_save_into(tmp_path, settings):
    run = settings.pop("run", tmp_path / "run")
    with pytest.raises(InvalidArgument, match=r"ctx.save has no run to write to: give fit run="):
        fit(run, callbacks=[asking(epoch_end=True)], **settings)


def test_once_it_is_over_nothing_is_saved_any_more(tmp_path):
    ask = callbacks.on(fit_end=lambda ctx: ctx.save("too late"))
    with pytest.raises(InvalidArgument, match="call ctx.save before the fit has ended"):
        fit(tmp_path / "run", callbacks=[ask])
    assert result_of(fit(tmp_path / "run")) == result_of(fit())


def test_it_needs_a_reason(tmp_path):
    with pytest.raises(InvalidArgument, match="ctx.save takes the reason"):
        fit(tmp_path / "run", callbacks=[callbacks.on(epoch_end=lambda ctx: ctx.save(""))])


# --- when it ends


def test_a_stop_inside_an_epoch_is_saved_twice(tmp_path):
    """Where it stopped, to go on from; and what came out, which a longer fit doesn't go through."""
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[stop_after(2, 3, "enough")])
    _, here, outcome = saved_checkpoints(tmp_path / "run")
    assert (here.epoch, here.batch, here.reason, here.ended) == (2, 3, "stopped: enough", None)
    assert (outcome.ended, outcome.resumable, here.resumable) == ("enough", False, True)
    assert outcome.values["valid/loss"] > 0 and here.values == {}


def test_a_stop_at_the_end_of_an_epoch_is_saved_once(tmp_path):
    fit(tmp_path / "run", checkpoint=RARELY, callbacks=[stop_after(2, reason="enough")])
    _, outcome = saved_checkpoints(tmp_path / "run")
    assert (outcome.epoch, outcome.ended, outcome.resumable) == (2, "enough", True)


# --- after an exception


def failing(hook, epoch=2, batch=4):
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
def test_the_last_good_state_is_saved_and_gone_on_from(tmp_path, hook, last):
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", checkpoint=RARELY, callbacks=[failing(hook)])
    assert places(tmp_path / "run") == [(*last, "exception: ValueError")]
    assert result_of(fit(tmp_path / "run", checkpoint=RARELY)) == result_of(fit())


@pytest.mark.parametrize("hook", ["train_batch_after_step", "update", "train_batch_end"])
def test_between_an_update_and_the_end_of_its_batch_there_is_no_good_state(tmp_path, hook):
    """The one before is kept: half a batch is no place to go on from."""
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", callbacks=[failing(hook)])
    assert [each.reason for each in saved_checkpoints(tmp_path / "run")] == ["every 4 updates"] * 2
    assert any(
        "the weights had changed since the last batch was done: that state was not saved" in text
        for text in texts(Run.open(tmp_path / "run").record, "note")
    )
    assert result_of(fit(tmp_path / "run")) == result_of(fit())


def test_with_windows_it_is_the_state_before_the_window(tmp_path):
    given = learner(accumulate=3)
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", of=given, checkpoint=RARELY, callbacks=[failing("train_batch_begin", 2, 6)])
    assert places(tmp_path / "run") == [(2, 3, "exception: ValueError")]
    assert result_of(fit(tmp_path / "run", of=given)) == result_of(fit(of=given))


def test_what_the_failed_batch_has_drawn_is_drawn_again(tmp_path):
    """The random numbers stand where they stood after the batch before."""

    def drawing(fails=False):
        def draw(ctx):
            torch.rand(3)
            if fails and (ctx.epoch, ctx.batch_number) == (2, 4):
                raise ValueError("boom")

        return {"checkpoint": RARELY, "callbacks": [callbacks.on(train_batch_begin=draw)]}

    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", **drawing(fails=True))
    assert result_of(fit(tmp_path / "run", **drawing())) == result_of(fit(tmp_path / "whole", **drawing()))


class Diverging(Net):
    """Its outputs are NaN at one batch of the training, as long as somebody wants it."""

    transient = True
    wanted = True

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += self.training
        return super().forward(x) * (float("nan") if self.seen == 9 and self.wanted else 1.0)


def test_a_loss_that_is_no_number(tmp_path, monkeypatch):
    given = learner(Diverging)
    with pytest.raises(NotFinite, match="epoch 2, batch 3"):
        fit(tmp_path / "run", of=given, checkpoint=RARELY)
    assert places(tmp_path / "run") == [(2, 2, "exception: NotFinite")]
    monkeypatch.setattr(Diverging, "wanted", False)
    assert result_of(fit(tmp_path / "run", of=given)) == result_of(fit(of=learner(Diverging)))


def test_what_fails_before_it_begins_leaves_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", callbacks=[failing("fit_begin", epoch=0)])
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert result_of(fit(tmp_path / "run")) == result_of(fit())


# --- callbacks and what no checkpoint sees


class Counting(Callback):
    """Counts updates, and comes back with what it had counted."""

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
    made = [each() for each in now]
    resumed = fit(left, callbacks=made)
    assert result_of(resumed) == whole and [each.count for each in made] == expected
    gone = ["there is no callback Counting any more; what it had counted is dropped"] if now == [Other] else []
    assert texts(resumed.record, "note") == gone


class Secret(Callback):
    def __init__(self):
        self.count = 0

    def on_update(self, ctx):
        self.count += 1


class Harmless(Secret):
    transient = True


class Seeing(Net):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class SeeingHarmlessly(Seeing):
    transient = True


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            {"callbacks": [Secret()]},
            "Secret changes `count`, which is not in its state, so a resumed run starts with its first value: give the "
            "callback state_dict and load_state_dict, or set transient = True in the class if that does no harm",
        ),
        ({"callbacks": [Harmless()]}, None),
        (
            {"of": learner(Seeing)},
            "Seeing changes `seen`, which is not in its state, so a resumed run starts with its first value: make it a "
            "buffer, give the module get_extra_state and set_extra_state, or set transient = True in the class if that "
            "does no harm",
        ),
        ({"of": learner(SeeingHarmlessly)}, None),
        ({"callbacks": [Counting(), callbacks.EarlyStopping(), callbacks.ReduceLROnPlateau()]}, None),
    ],
    ids=["callback", "transient callback", "module", "transient module", "with a state"],
)
def test_what_no_checkpoint_can_see_is_told_once(tmp_path, settings, warning):
    fitted = fit(tmp_path / "run", **settings)
    assert texts(fitted.record) == ([] if warning is None else [warning])


def test_without_a_run_nobody_is_warned():
    assert texts(fit(callbacks=[Secret()], of=learner(Seeing)).record) == []


def test_the_state_of_the_context_comes_back_as_far_as_it_can(tmp_path):
    class Odd:
        pass

    def count(ctx):
        ctx.state.setdefault("tensor", torch.zeros(2)).add_(1)
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        ctx.state["odd"] = Odd()

    seen = {}
    watch = callbacks.on(update=count, fit_end=lambda ctx: seen.update(ctx.state))
    left, _ = killed_run(tmp_path, callbacks=[watch])
    resumed = fit(left, callbacks=[watch])
    assert seen["count"] == 18 and seen["tensor"].tolist() == [18.0, 18.0]
    told = [text for text in texts(resumed.record) if "ctx.state" in text]
    assert told and told[0].startswith("ctx.state['odd'] is a Odd, which a checkpoint can't hold: a run that goes on")


def test_extra_state_of_a_module_comes_back(tmp_path):
    class Remembering(Seeing):
        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    given = learner(Remembering)
    left, whole = killed_run(tmp_path, of=given)
    resumed = fit(left, of=given)
    assert result_of(resumed) == whole and texts(resumed.record) == []
    assert resumed.model.seen == fit(of=given).model.seen


def test_a_fit_in_which_nothing_trains_is_saved_too(tmp_path):
    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return self.weight.expand(len(x), 4)

    fitted = fit(tmp_path / "run", of=learner(Still, lr=0.0), data=samples(32))
    assert result_of(fitted) == result_of(fit(tmp_path / "run", of=learner(Still, lr=0.0), data=samples(32)))
