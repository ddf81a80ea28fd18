"""When to save and which checkpoints to delete."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint import Checkpoint
from stoker.errors import ConfigError, InvalidArgument, NoSuchMetric
from tests.checkpoint.states import moment, saved


def reason(checkpoint, here, there=(), direction="min"):
    return checkpoint.policy(lambda name: direction).save_reason(here, there)


def deleted(checkpoint, there, direction="min"):
    return [name.lstrip("0") for name in checkpoint.policy(lambda name: direction).names_to_delete(there)]


# When to save


@pytest.mark.parametrize(
    ("here", "there", "is_due"),
    [
        (moment(0), [], False),
        (moment(5), [], True),
        (moment(5), [saved(5)], False),  # another batch of the accumulation window after update 5
        (moment(5), [saved(5, resumable=False)], True),  # the result of a fit that was cut short
        (moment(10), [saved(5), saved(15)], True),
        (moment(12, epoch_ended=True), [saved(10)], False),
    ],
)
def test_every_few_updates(here, there, is_due):
    assert reason(Checkpoint(every=5), here, there) == ("every 5 updates" if is_due else None)


@pytest.mark.parametrize("ended", [True, False])
def test_every_epoch(ended):
    assert reason(Checkpoint(), moment(7, epoch_ended=ended), [saved(7)]) == ("every epoch" if ended else None)


@pytest.mark.parametrize(
    ("minutes", "there", "is_due"),
    [
        (10.0, [], True),
        (15.0, [saved(1, minutes=5.5)], False),
        (15.5, [saved(1, minutes=1.0), saved(2, minutes=5.6)], False),
        (15.5, [saved(1, minutes=1.0), saved(2, minutes=5.6, resumable=False)], True),
    ],
)
def test_every_few_minutes_of_training(minutes, there, is_due):
    found = reason(Checkpoint(every="10 minutes"), moment(3, minutes=minutes), there)
    assert found == ("every 10 minutes" if is_due else None)


nan, infinity = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("direction", "loss", "there", "is_best"),
    [
        ("min", 0.5, [], True),
        ("min", nan, [], False),
        ("min", 0.5, [saved(1), saved(2, loss=0.6)], True),
        ("min", 0.5, [saved(1, loss=0.5)], False),  # not better
        ("min", 0.5, [saved(1, loss=0.4), saved(2, loss=0.6)], False),
        ("min", 0.5, [saved(1, loss=nan)], True),
        ("max", 0.5, [saved(1, loss=0.4)], True),
    ],
)
def test_a_new_best_is_saved(direction, loss, there, is_best):
    found = reason(Checkpoint(keep_best="valid/loss"), moment(9, loss=loss), there, direction)
    assert found == ("best valid/loss so far: 0.5000" if is_best else None)


def test_a_metric_without_a_direction_is_named():
    with pytest.raises(
        InvalidArgument, match="'valid/iou' is better; pass Checkpoint\\(keep_best='valid/iou', direction="
    ):
        reason(Checkpoint(keep_best="valid/iou"), moment(1, values={"valid/iou": 0.1}), direction=None)


def test_an_unknown_metric_is_named_with_the_known_ones():
    here = moment(9, values={"valid/accuracy": 0.5, "valid/loss": 0.7}, epoch_ended=True)
    with pytest.raises(NoSuchMetric) as caught:
        reason(Checkpoint(keep_best="valid/acuracy"), here, [saved(1, loss=0.4)])
    assert str(caught.value) == (
        "keep_best='valid/acuracy': there is no such metric; did you mean 'valid/accuracy'? "
        "(there are: valid/accuracy, valid/loss)"
    )


def test_a_metric_that_not_every_validation_has_is_allowed():
    here = moment(9, values={"valid/accuracy": 0.5})
    assert reason(Checkpoint(keep_best="valid/loss"), here, [saved(1, loss=0.4)]) is None


@pytest.mark.parametrize(("every", "updates"), [("epoch", []), (3, [0, 3, 6]), ("1 minute", [0, 1, 2, 3, 4, 5, 6, 7])])
def test_a_policy_is_asked_only_where_it_can_be_due(every, updates):
    policy = Checkpoint(every=every, keep_best="valid/loss").policy()
    assert [update for update in range(8) if policy.may_save_at(update)] == updates
    assert policy.uses_clock == (every == "1 minute")


# What to delete


@pytest.mark.parametrize(
    ("count", "there", "gone"),
    [
        (2, [saved(1), saved(2)], []),
        (2, [saved(1), saved(2), saved(3), saved(4)], ["1", "2"]),
        (1, [saved(1), saved(1, suffix=".1")], ["1"]),
        (1, [saved(1), saved(2, resumable=False), saved(3, resumable=False)], ["2"]),
        (1, [saved(1), saved(2, resumable=False), saved(3)], ["1", "2"]),
    ],
)
def test_the_last_checkpoints_are_kept(count, there, gone):
    assert deleted(Checkpoint(keep_last=count), there) == gone


@pytest.mark.parametrize(
    ("direction", "there", "gone"),
    [
        ("min", [saved(1, loss=0.4), saved(2, loss=0.3), saved(3, loss=0.5), saved(4)], ["1", "3"]),
        ("max", [saved(1, loss=0.4), saved(2, loss=0.3), saved(3, loss=0.5), saved(4)], ["1", "2"]),
        ("min", [saved(1, loss=0.3), saved(2, loss=0.3), saved(3)], ["2"]),  # the first of equal ones
        ("min", [saved(1, loss=nan), saved(2, loss=0.3), saved(3, loss=nan)], ["1"]),
        ("max", [saved(1, loss=0.3), saved(2, loss=0.9, resumable=False), saved(3)], ["1"]),
    ],
)
def test_the_best_is_kept_too(direction, there, gone):
    assert deleted(Checkpoint(keep_last=1, keep_best="valid/loss"), there, direction) == gone


losses = st.none() | st.floats(width=16)
checkpoints = st.lists(
    st.tuples(st.integers(0, 40), losses, st.booleans()), unique_by=lambda each: each[0], max_size=12
).map(
    lambda rows: [
        saved(update, loss=loss, resumable=resumable)
        for update, loss, resumable in sorted(rows, key=lambda row: row[0])
    ]
)


@given(checkpoints, st.integers(1, 4), st.sampled_from([None, "min", "max"]))
def test_the_newest_the_last_and_the_best_are_never_deleted(there, count, direction):
    policy = Checkpoint(keep_last=count, keep_best=direction and "valid/loss", direction=direction).policy()
    before = list(there)
    names = policy.names_to_delete(there)
    left = [each for each in there if each.name not in names]
    resumable = [each for each in there if each.resumable]
    assert there == before or all(a is b for a, b in zip(there, before, strict=True))
    assert left[-1:] == there[-1:] and all(each in left for each in resumable[-count:])
    values = [each.values["valid/loss"] for each in there if each.values and not math.isnan(each.values["valid/loss"])]
    if direction and values:
        best = (min if direction == "min" else max)(values)
        assert best in [each.values.get("valid/loss") for each in left]
    assert len(left) <= count + 2
    assert policy.names_to_delete(left) == []


@given(checkpoints, st.integers(1, 12) | st.sampled_from(["epoch", "1 minute"]), st.integers(0, 40))
def test_a_reason_between_validations_is_announced(there, every, update):
    policy = Checkpoint(every=every, keep_best="valid/loss", direction="min").policy()
    if policy.save_reason(moment(update, minutes=60.0), there):
        assert policy.may_save_at(update)


# Settings


def test_settings_are_restored_from_json():
    checkpoint = Checkpoint(every="2.5 minutes", keep_last=5, keep_best="valid/f1", direction="max", deadline=1.7e9)
    assert Checkpoint.from_dict(json.loads(json.dumps(checkpoint.to_dict()))) == checkpoint


INTERVAL = 'expected "epoch", a number of updates of at least 1, or a time such as "10 minutes"'


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(({"every": every}, f"every={every!r}: {INTERVAL}") for every in (0, "epochs", "10", "0 minutes")),
        ({"keep_last": 0}, "keep_last=0: expected a number of checkpoints of at least 1"),
        ({"keep_best": ""}, "keep_best='': expected the name of a metric, such as \"valid/loss\""),
        ({"direction": "up"}, "direction: expected "),
        ({"deadline": float("nan")}, "deadline=nan: expected seconds since 1970, as time.time() returns"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_at_once(given, text):
    with pytest.raises((ConfigError, InvalidArgument)) as caught:
        Checkpoint(**given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "environ", "deadline"),
    [
        (None, {}, None),
        (None, {"SLURM_JOB_END_TIME": "1700000000"}, 1.7e9),
        (1.6e9, {"SLURM_JOB_END_TIME": "1700000000"}, 1.6e9),
        *((None, {"SLURM_JOB_END_TIME": text}, None) for text in ("Unknown", "0", "inf")),
    ],
)
def test_the_deadline_is_the_users_or_that_of_the_cluster(given, environ, deadline):
    assert Checkpoint(deadline=given).find_deadline(environ) == deadline
