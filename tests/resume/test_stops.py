"""A run that is stopped at any moment in any way resumes to the same bits of its whole state."""

import random
import shutil

import pytest

from stoker import Callback, Checkpoint
from stoker.callbacks import HOOK_NAMES
from tests.resume.attempts import Stop, assert_same, describe, outcome, run_with_stops, script_of, start
from tests.resume.scenarios import COUNT, EVERY_BATCH, Scenario, fit_arguments, learner, training_data

RICH = Scenario(samples=True, draws=True, mix=True, callbacks=True, metrics=True, keep_best="valid/loss")
WINDOW = Scenario(accumulate=3, metrics=True, every=EVERY_BATCH)
BETWEEN = Scenario(validate_every=3, sets=2, draws=True, every=2)
WAYS = ["raise", "int", "term", "kill"]


def as_text(value):
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def product(first, second, *, every=1):
    """Half of all pairs, with every value of both in several of them.

    One pair of every first value (or of each `every`th) is in the fast set; the others are soak tests.
    """
    cases = []
    for row, one in enumerate(first):
        for column, other in enumerate(second):
            is_fast = row % every == 0 and column == row // every % len(second)
            if not is_fast and (row + column) % 2:
                continue
            marks = [] if is_fast else [pytest.mark.soak]
            cases.append(pytest.param(one, other, marks=marks, id=f"{as_text(one)}: {as_text(other)}"))
    return cases


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """The attempt without a stop, for each scenario."""
    known = {}

    def reference(scenario):
        if scenario not in known:
            known[scenario] = start(script_of(scenario), tmp_path_factory.mktemp("reference") / "run")
            assert known[scenario].error is None
            assert_each_sample_once(known[scenario])
        return known[scenario]

    return reference


def assert_each_sample_once(attempt):
    log = outcome(attempt)["checkpoint"]["callbacks"]["BatchLog"]["log"]
    for epoch in range(1, attempt.fitted.epochs + 1):
        assert sorted(number for each, numbers, _ in log if each == epoch for number in numbers) == list(range(COUNT))


def check(scenario, stops, tmp_path, references, *, all_stop=True):
    attempts = run_with_stops(script_of(scenario), tmp_path / "run", stops)
    assert all(each.has_stopped for each in (attempts[:-1] if all_stop else attempts[:1])), describe(attempts)
    assert_same(attempts, references(scenario))
    shutil.rmtree(tmp_path)


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
AROUND_VALIDATION = [moment for moment in MOMENTS if "valid" in moment[0] or "epoch" in moment[0]]


@pytest.mark.parametrize(("moment", "way"), product(MOMENTS, WAYS, every=2))
def test_a_stop_at_any_moment(moment, way, tmp_path, references, fast):
    check(RICH, [Stop(way, *moment)], tmp_path, references)


@pytest.mark.parametrize(("moment", "way"), product(AROUND_VALIDATION, ["raise", "int", "kill"], every=3))
def test_a_stop_around_a_validation_inside_an_epoch(moment, way, tmp_path, references, fast):
    check(BETWEEN, [Stop(way, *moment)], tmp_path, references)


@pytest.mark.parametrize(("batch", "way"), product([1, 2, 3, 7, 8], ["raise", "int", "kill"], every=2))
def test_a_stop_inside_an_accumulation_window(batch, way, tmp_path, references, fast):
    check(WINDOW, [Stop(way, "on_train_batch_end", 2, batch)], tmp_path, references)


SEVERAL = {
    "three times in an epoch": [
        Stop(way, "on_train_batch_end", 2, batch) for way, batch in (("int", 2), ("raise", 4), ("kill", 7))
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
    "the end of every epoch": [Stop("kill", "on_epoch_begin", n) for n in (1, 2, 3)],
    "kills only": [Stop("kill", "on_update", 1, 6), Stop("kill", "on_train_end", 1), Stop("kill", "on_valid_end", 3)],
}


@pytest.mark.parametrize(("scenario", "stops"), product([RICH, WINDOW, BETWEEN], SEVERAL))
def test_several_stops(scenario, stops, tmp_path, references, fast):
    check(scenario, SEVERAL[stops], tmp_path, references)


KILLED_EARLY = {
    "before the first checkpoint": (
        Scenario(seed=None, draws=True, every=10**6),
        [Stop("kill", "on_train_batch_end", 2, 3), Stop("kill", "on_valid_end", 1)],
    ),
    "a CSV file of a run that starts again": (
        Scenario(callbacks=True, every=10**6),
        [Stop("kill", "on_train_batch_end", 2, 3)],
    ),
    "a CSV file before its columns are known": (
        Scenario(callbacks=True, validate_every=3),
        [Stop("int", "on_train_batch_end", 1, 2)],
    ),
}


@pytest.mark.parametrize("case", KILLED_EARLY)
def test_an_early_stop(case, tmp_path, references, fast):
    check(*KILLED_EARLY[case], tmp_path, references)


# --- every feature

FEATURES = [
    Scenario(kind="groups", metrics=True, callbacks=True),
    Scenario(kind="objectives", accumulate=3, metrics=True),
    Scenario(kind="objectives", keep="last", every=1),
    Scenario(kind="ema", callbacks=True, keep="last"),
    Scenario(kind="ema", keep_best="valid/loss", every=3, keep_last=1),
    Scenario(metrics=True, callbacks=True, monitor="valid/accuracy", keep_best=True, validate_every=3),
    Scenario(kind="ema", monitor="train/loss", every=EVERY_BATCH),
    Scenario(kind="bf16", metrics=True),
    Scenario(kind="fp16", nan=True, every=1),
    Scenario(kind="fp16", accumulate=3),
    Scenario(kind="schedulefree", validate_every=2),
    Scenario(kind="extra_state", every=EVERY_BATCH),
    Scenario(kind="tied", callbacks=True),
    Scenario(nan=True, accumulate=3, every=1, metrics=True),
    Scenario(seed=None, samples=True, draws=True),
    Scenario(background=True, every=1, keep_last=1),
    Scenario(samples=True, workers=2, every=3, background=True),
    Scenario(samples=True, workers=2, accumulate=3, kind="ema", every=EVERY_BATCH),
    Scenario(frozen=True, callbacks=True, every=3),
    Scenario(frozen=True, kind="ema", callbacks=True, keep_best="valid/loss", every=EVERY_BATCH),
    Scenario(compiled="aot_eager", callbacks=True),
]
SLOW = [scenario for scenario in FEATURES if scenario.compiled or (scenario.workers and scenario.kind == "ema")]
STOPS = {
    "exception": [Stop("raise", "on_train_batch_after_backward", 2, 4)],
    "interrupt": [Stop("int", "on_train_batch_after_loss", 2, 5)],
    "kill and SIGTERM": [Stop("kill", "on_train_batch_end", 2, 7), Stop("term", "on_valid_batch_begin", 2, 2)],
}


@pytest.mark.parametrize(
    ("scenario", "stops"),
    [
        *product([each for each in FEATURES if each not in SLOW], STOPS),
        *(pytest.param(each, stops, marks=pytest.mark.soak, id=f"{each}: {stops}") for each in SLOW for stops in STOPS),
    ],
)
def test_every_feature_resumes_exactly(scenario, stops, tmp_path, references, fast):
    check(scenario, STOPS[stops], tmp_path, references)


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, while it imports inductor
def test_a_model_compiled_with_inductor_resumes_exactly(tmp_path, references):
    check(Scenario(compiled="inductor", epochs=2), STOPS["interrupt"], tmp_path, references)


# --- a fit that was about to end


class StopAt(Callback):
    """Stops the training after a batch, or after an epoch."""

    transient = True

    def __init__(self, epoch, batch=None):
        self.place = epoch, batch

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == self.place:
            ctx.stop("stopped by a callback")

    def on_epoch_end(self, ctx):
        if (ctx.epoch, None) == self.place:
            ctx.stop("stopped by a callback")


def ending_script(place=None, *, validate_every="epoch", **limits):
    scenario = Scenario(validate_every=validate_every)

    def script(run, stopper, watchers):
        return learner(scenario, stopper.loss).fit(
            training_data(scenario, stopper.flag),
            **fit_arguments(scenario) | {"checkpoint": Checkpoint(background=False)} | limits,
            callbacks=[*watchers, *([] if place is None else [StopAt(*place)]), stopper],
            run=run,
            resume=True,
            show=False,
        )

    return script


ENDINGS = {
    "after a batch": ending_script((2, 3)),
    "after an epoch": ending_script((2,)),
    "after 12 updates": ending_script(epochs=None, updates=12),
    "after 12 updates, validated inside the epoch": ending_script(epochs=None, updates=12, validate_every=5),
    "after 16 updates, at the end of an epoch": ending_script(epochs=None, updates=16),
}
LAST_MOMENTS = [
    Stop(way, *place)
    for place in (("on_valid_batch_end", 2, 1), ("on_epoch_end", 2), ("on_fit_end",))
    for way in ("raise", "int", "kill")
]


@pytest.mark.parametrize(("ending", "stop"), product(ENDINGS, LAST_MOMENTS))
def test_a_fit_that_was_stopping_ends_at_the_same_place(ending, stop, tmp_path, fast):
    reference = start(ENDINGS[ending], tmp_path / "reference")
    attempts = run_with_stops(ENDINGS[ending], tmp_path / "run", [stop])
    assert attempts[0].has_stopped
    assert_same(attempts, reference)


@pytest.mark.parametrize(
    ("updates", "stop"),
    product([5, 8, 12], [None, Stop("raise", "on_valid_batch_end"), Stop("int", "on_valid_end")], every=2),
)
def test_a_short_fit_continues_as_a_longer_one(updates, stop, tmp_path, fast):
    short, long = (ending_script(epochs=None, updates=number) for number in (updates, 20))
    reference = start(long, tmp_path / "reference")
    for each in (stop, None):
        start(short, tmp_path / "run", each)
    assert_same([start(long, tmp_path / "run")], reference)


# --- random combinations


def random_case(seed):
    draw = random.Random(seed)
    kinds = ["plain", "plain", "groups", "objectives", "ema", "bf16", "fp16", "schedulefree", "extra_state", "tied"]
    kind = draw.choice(kinds)
    is_gan = kind == "objectives"
    scenario = Scenario(
        kind=kind,
        samples=draw.random() < 0.4,
        draws=kind in ("plain", "groups", "ema") and draw.random() < 0.4,
        mix=not is_gan and draw.random() < 0.3,
        accumulate=draw.choice([1, 3]),
        validate_every=draw.choice(["epoch", "epoch", 2, 3]),
        sets=draw.choice([1, 2]),
        keep=draw.choice(["best", "last"]),
        callbacks=draw.random() < 0.3,
        metrics=draw.random() < 0.3,
        nan=not is_gan and draw.random() < 0.2,
        seed=draw.choice([3, 3, None]),
        epochs=2,
        every=draw.choice(["epoch", "epoch", 1, 2, 5, 5, EVERY_BATCH]),
        keep_last=draw.choice([1, 2, 4]),
        keep_best=draw.choice([None, None, "valid/loss"]),
        background=draw.random() < 0.5,
        frozen=not is_gan and seed % 3 == 0,
    )
    stops = [random_stop(draw, scenario) for _ in range(draw.choice([1, 1, 2, 3]))]
    return scenario, sorted(stops, key=lambda stop: stop.epoch or 0)


def random_stop(draw, scenario):
    is_gan = scenario.kind == "objectives"
    hooks = [name for name in HOOK_NAMES if name not in ("on_interrupt", "on_exception", "on_fit_end")]
    at = draw.choice([name for name in hooks if not (is_gan and "after_pred" in name)])
    way = draw.choice([*WAYS, "kill"] + ["data"] * scenario.samples + ["loss"] * (not is_gan))
    batch = None
    if "valid_batch" in at:
        batch = draw.choice([1, 2, 3])
    elif "train_batch" in at or at == "on_update":
        not_every_batch = at in ("on_update", "on_train_batch_after_step") and (
            scenario.accumulate > 1 or scenario.nan or scenario.kind == "fp16"
        )
        batch = None if not_every_batch else draw.choice([1, 2, 3, 5, 8])
    return Stop(way, at, None if at == "on_fit_begin" else draw.choice([1, 2]), batch)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 50))])
def test_random_combinations_of_features_and_stops(seed, tmp_path, references, fast):
    scenario, stops = random_case(seed)
    check(scenario, stops, tmp_path, references, all_stop=False)
