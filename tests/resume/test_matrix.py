"""Stop a run at any moment, in any way, start the script again: it ends in the same bits, in the whole of its state."""

import random
import shutil

import pytest

from stoker import Callback, Checkpoint
from stoker.callbacks import HOOK_NAMES
from tests.resume.parts import Stop, assert_same, outcome, script_of, start, stopped, told
from tests.resume.scenes import ALWAYS, COUNT, Scene, fit_settings, learner, training_data

RICH = Scene(samples=True, draws=True, mix=True, callbacks=True, metrics=True, keep_best="valid/loss")
WINDOW = Scene(accumulate=3, metrics=True, every=ALWAYS)
BETWEEN = Scene(validate_every=3, sets=2, draws=True, every=2)


@pytest.fixture(scope="module")
def truths(tmp_path_factory):
    known = {}

    def truth(scene):
        if scene not in known:
            known[scene] = start(script_of(scene), tmp_path_factory.mktemp("truth") / "run")
            assert known[scene].error is None
            assert_each_sample_once(known[scene])
        return known[scene]

    return truth


def assert_each_sample_once(part):
    log = outcome(part)["checkpoint"]["callbacks"]["Seen"]["log"]
    for epoch in range(1, part.fitted.epochs + 1):
        assert sorted(number for each, numbers, _ in log if each == epoch for number in numbers) == list(range(COUNT))


def check(scene, stops, tmp_path, truths, *, all_strike=True):
    parts = stopped(script_of(scene), tmp_path / "run", stops)
    assert all(part.struck for part in (parts[:-1] if all_strike else parts[:1])), told(parts)
    assert_same(parts, truths(scene))
    shutil.rmtree(tmp_path)


def spelled(value):
    return str(value) if isinstance(value, Scene | Stop) else " ".join(map(str, value))


# --- every moment, in every way

MOMENTS = [
    ("on_train_batch_end", 2, 4),
    ("on_train_batch_begin", 1, 1),
    ("on_train_batch_after_loss", 2, 1),
    ("on_train_batch_after_step", 2, 3),
    ("on_update", 2, 6),
    ("on_train_batch_end", 2, 8),
    ("on_train_end", 2, None),
    ("on_valid_begin", 2, None),
    ("on_valid_batch_after_pred", 2, 1),
    ("on_valid_batch_end", 2, 3),
    ("on_valid_end", 2, None),
    ("on_validation", 2, None),
    ("on_epoch_end", 2, None),
    ("on_epoch_end", 3, None),
    ("on_epoch_begin", 3, None),
    ("on_train_begin", 2, None),
    ("on_fit_begin", None, None),
    ("on_fit_end", None, None),
]


@pytest.mark.parametrize("way", ["raise", "int", "term", "kill"])
@pytest.mark.parametrize("moment", MOMENTS, ids=spelled)
def test_a_stop_at_any_moment(moment, way, tmp_path, truths, fast):
    check(RICH, [Stop(way, *moment)], tmp_path, truths)


@pytest.mark.parametrize("way", ["raise", "int", "kill"])
@pytest.mark.parametrize("moment", [each for each in MOMENTS if "valid" in each[0] or "epoch" in each[0]], ids=spelled)
def test_around_a_validation_in_between(moment, way, tmp_path, truths, fast):
    check(BETWEEN, [Stop(way, *moment)], tmp_path, truths)


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("way", ["raise", "int", "kill"])
def test_inside_a_window(way, batch, tmp_path, truths, fast):
    check(WINDOW, [Stop(way, "on_train_batch_end", 2, batch)], tmp_path, truths)


SEVERAL = {
    "three times in an epoch": [
        *[Stop(way, "on_train_batch_end", 2, batch) for way, batch in (("int", 2), ("raise", 4), ("kill", 7))]
    ],
    "right after a resume": [
        Stop("int", "on_train_batch_end", 2, 3),
        *[Stop(way, "on_fit_begin") for way in ("raise", "int", "kill", "term")],
    ],
    "the first batch after a resume": [
        Stop("int", "on_train_batch_end", 2, 3),
        Stop("raise", "on_train_batch_begin", 2, 4),
    ],
    "the same validation again": [Stop(way, "on_valid_batch_end", 2, 2) for way in ("int", "raise", "term", "kill")],
    "the loss, then a signal": [Stop("loss", "on_train_batch_end", 1, 5), Stop("term", "on_train_batch_begin", 1, 7)],
    "every epoch's end": [Stop("kill", "on_epoch_begin", n) for n in (1, 2, 3)],
    "kills only": [Stop("kill", "on_update", 1, 6), Stop("kill", "on_train_end", 1), Stop("kill", "on_valid_end", 3)],
}


@pytest.mark.parametrize("stops", SEVERAL)
@pytest.mark.parametrize("scene", [RICH, WINDOW, BETWEEN], ids=spelled)
def test_several_stops(scene, stops, tmp_path, truths, fast):
    check(scene, SEVERAL[stops], tmp_path, truths)


def test_before_the_first_checkpoint(tmp_path, truths, fast):
    scene = Scene(seed=None, draws=True, every=10**6)
    check(scene, [Stop("kill", "on_train_batch_end", 2, 3), Stop("kill", "on_valid_end", 1)], tmp_path, truths)


def test_a_table_begins_anew_with_its_run(tmp_path, truths, fast):
    check(Scene(callbacks=True, every=10**6), [Stop("kill", "on_train_batch_end", 2, 3)], tmp_path, truths)


def test_a_table_keeps_the_order_of_its_columns(tmp_path, truths, fast):
    check(Scene(callbacks=True, validate_every=3), [Stop("int", "on_train_batch_end", 1, 2)], tmp_path, truths)


# --- every feature, stopped in every way

FEATURES = [
    Scene(kind="groups", metrics=True, callbacks=True),
    Scene(kind="objectives", accumulate=3, metrics=True),
    Scene(kind="objectives", keep="last", every=1),
    Scene(kind="ema", callbacks=True, keep="last"),
    Scene(kind="ema", keep_best="valid/loss", every=3, keep_last=1),
    Scene(kind="bf16", metrics=True),
    Scene(kind="fp16", nan=True, every=1),
    Scene(kind="fp16", accumulate=3),
    Scene(kind="schedulefree", validate_every=2),
    Scene(kind="counting", every=ALWAYS),
    Scene(kind="odd", callbacks=True),
    Scene(nan=True, accumulate=3, every=1, metrics=True),
    Scene(seed=None, samples=True, draws=True),
    Scene(background=True, every=1, keep_last=1),
    Scene(samples=True, workers=2, every=3, background=True),
    Scene(samples=True, workers=2, accumulate=3, kind="ema", every=ALWAYS),
]
ENDS = [
    [Stop("raise", "on_train_batch_after_backward", 2, 4)],
    [Stop("int", "on_train_batch_after_loss", 2, 5)],
    [Stop("kill", "on_train_batch_end", 2, 7), Stop("term", "on_valid_batch_begin", 2, 2)],
]


@pytest.mark.parametrize("stops", ENDS, ids=spelled)
@pytest.mark.parametrize("scene", FEATURES, ids=spelled)
def test_every_feature(scene, stops, tmp_path, truths, fast):
    check(scene, stops, tmp_path, truths)


@pytest.mark.parametrize("stops", ENDS, ids=spelled)
def test_compiled(stops, tmp_path, truths, fast):
    check(Scene(compiled="aot_eager", callbacks=True), stops, tmp_path, truths)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, while it imports inductor
def test_compiled_to_code(tmp_path, truths, fast):
    check(Scene(compiled="inductor", epochs=2), ENDS[1], tmp_path, truths)


# --- a stop that somebody asked for stays one


class Enough(Callback):
    """Stops the training by itself: at a batch, or at an epoch's end."""

    transient = True

    def __init__(self, epoch, batch=None):
        self.place = epoch, batch

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == self.place:
            ctx.stop("seen enough")

    def on_epoch_end(self, ctx):
        if (ctx.epoch, None) == self.place:
            ctx.stop("seen enough")


def ending_script(place=None, *, validate_every="epoch", **limits):
    scene = Scene(validate_every=validate_every)

    def script(run, trouble, watching):
        return learner(scene, trouble.loss).fit(
            training_data(scene, trouble.flag),
            **fit_settings(scene) | {"checkpoint": Checkpoint(background=False)} | limits,
            callbacks=[*watching, *([] if place is None else [Enough(*place)]), trouble],
            run=run,
            resume=True,
            show=False,
        )

    return script


LAST = [
    *[Stop(way, "on_valid_batch_end", 2, 1) for way in ("raise", "int", "kill")],
    *[Stop(way, "on_epoch_end", 2) for way in ("raise", "int", "kill")],
    *[Stop(way, "on_fit_end") for way in ("raise", "int", "kill")],
]
ENDINGS = {
    "at a batch": ending_script((2, 3)),
    "at an epoch's end": ending_script((2,)),
    "after 12 updates": ending_script(epochs=None, updates=12),
    "after 12 updates, validated between": ending_script(epochs=None, updates=12, validate_every=5),
    "after 16 updates, an epoch's end": ending_script(epochs=None, updates=16),
}


@pytest.mark.parametrize("stop", LAST, ids=spelled)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_fit_that_was_about_to_end_ends_there(ending, stop, tmp_path, fast):
    truth = start(ENDINGS[ending], tmp_path / "truth")
    parts = stopped(ENDINGS[ending], tmp_path / "run", [stop])
    assert parts[0].struck
    assert_same(parts, truth)


@pytest.mark.parametrize("updates", [5, 8, 12])
@pytest.mark.parametrize("stop", [Stop("raise", "on_valid_batch_end"), Stop("int", "on_valid_end"), None], ids=str)
def test_a_shorter_fit_goes_on_as_the_longer_one(stop, updates, tmp_path, fast):
    short, long = (ending_script(epochs=None, updates=number) for number in (updates, 20))
    truth = start(long, tmp_path / "truth")
    for each in (stop, None):
        start(short, tmp_path / "run", each)
    assert_same([start(long, tmp_path / "run")], truth)


# --- a sample of the product


def sampled(seed):
    draw = random.Random(seed)
    kind = draw.choice(
        ["plain", "plain", "groups", "objectives", "ema", "bf16", "fp16", "schedulefree", "counting", "odd"]
    )
    own = kind == "objectives"  # a model with losses of its own
    scene = Scene(
        kind=kind,
        samples=draw.random() < 0.4,
        draws=kind in ("plain", "groups", "ema") and draw.random() < 0.4,
        mix=not own and draw.random() < 0.3,
        accumulate=draw.choice([1, 3]),
        validate_every=draw.choice(["epoch", "epoch", 2, 3]),
        sets=draw.choice([1, 2]),
        keep=draw.choice(["best", "last"]),
        callbacks=draw.random() < 0.3,
        metrics=draw.random() < 0.3,
        nan=not own and draw.random() < 0.2,
        seed=draw.choice([3, 3, None]),
        epochs=2,
        every=draw.choice(["epoch", "epoch", 1, 2, 5, 5, ALWAYS]),
        keep_last=draw.choice([1, 2, 4]),
        keep_best=draw.choice([None, None, "valid/loss"]),
        background=draw.random() < 0.5,
    )
    stops = [sampled_stop(draw, scene) for _ in range(draw.choice([1, 1, 2, 3]))]
    return scene, sorted(stops, key=lambda stop: stop.epoch or 0)


def sampled_stop(draw, scene):
    """A place that the training comes by, if it isn't past it already."""
    hooks = [name for name in HOOK_NAMES if name not in ("on_interrupt", "on_exception", "on_fit_end")]
    at = draw.choice(hooks if scene.kind != "objectives" else [name for name in hooks if "after_pred" not in name])
    ways = ["raise", "int", "term", "kill", "kill"] + ["data"] * scene.samples + ["loss"] * (scene.kind != "objectives")
    batch = None
    if "valid_batch" in at:
        batch = draw.choice([1, 2, 3])
    elif "train_batch" in at or at == "on_update":
        updates = at in ("on_update", "on_train_batch_after_step") and (
            scene.accumulate > 1 or scene.nan or scene.kind == "fp16"
        )
        batch = None if updates else draw.choice([1, 2, 3, 5, 8])
    return Stop(draw.choice(ways), at, None if at == "on_fit_begin" else draw.choice([1, 2]), batch)


@pytest.mark.parametrize("seed", range(100))
def test_a_sample_of_everything_together(seed, tmp_path, truths, fast):
    scene, stops = sampled(seed)
    check(scene, stops, tmp_path, truths, all_strike=False)
