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
        (moment(4), [], False),
        (moment(5), [], True),
        (moment(5), [saved(5)], False),  # another batch of the accumulation window after update 5
        (moment(5, batch=11), [saved(5, batch=10)], False),
        (moment(5), [saved(5, resumable=False)], True),  # the result of a fit that was cut short
        (moment(10), [saved(5)], True),
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
        (9.9, [], False),
        (10.0, [], True),
        (15.0, [saved(1, minutes=5.5)], False),
        (15.5, [saved(1, minutes=5.5)], True),
        (15.5, [saved(1, minutes=1.0), saved(2, minutes=5.6)], False),
        (15.5, [saved(1, minutes=1.0), saved(2, minutes=5.6, resumable=False)], True),
    ],
)
def test_every_few_minutes_of_training(minutes, there, is_due):
    found = reason(Checkpoint(every="10 minutes"), moment(3, minutes=minutes), there)
    assert found == ("every 10 minutes" if is_due else None)


@pytest.mark.parametrize(
    ("every", "text"),
    [(1, "every update"), ("1 minute", "every minute"), ("1 minutes", "every minute"), ("0.5 minutes", None)],
)
def test_the_reason_is_grammatical(every, text):
    assert reason(Checkpoint(every=every), moment(3, minutes=1.0)) == (text or "every 0.5 minutes")


nan, infinity = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("direction", "loss", "there", "is_best"),
    [
        ("min", 0.5, [], True),
        ("min", None, [], False),
        ("min", nan, [], False),
        ("min", 0.5, [saved(1), saved(2, loss=0.6)], True),
        ("min", 0.5, [saved(1, loss=0.5)], False),  # not better
        ("min", 0.5, [saved(1, loss=0.4), saved(2, loss=0.6)], False),
        ("min", 0.5, [saved(1, loss=nan)], True),
        ("min", 0.5, [saved(1, loss=infinity)], True),
        ("max", 0.5, [saved(1, loss=0.4)], True),
        ("max", 0.5, [saved(1, loss=0.6)], False),
    ],
)
def test_a_new_best_is_saved(direction, loss, there, is_best):
    found = reason(Checkpoint(keep_best="valid/loss"), moment(9, loss=loss), there, direction)
    assert found == ("best valid/loss so far: 0.5000" if is_best else None)


def test_all_reasons_are_given():
    checkpoint = Checkpoint(every=5, keep_best="valid/loss")
    assert reason(checkpoint, moment(5, loss=0.5)) == "every 5 updates; best valid/loss so far: 0.5000"


def test_an_unknown_metric_is_named_with_the_known_ones():
    here = moment(9, values={"valid/accuracy": 0.5, "valid/loss": 0.7})
    with pytest.raises(NoSuchMetric) as caught:
        reason(Checkpoint(keep_best="valid/acuracy"), here, [saved(1, loss=0.4)])
    assert str(caught.value) == (
        "keep_best='valid/acuracy': there is no such metric; did you mean 'valid/accuracy'? "
        "(there are: valid/accuracy, valid/loss)"
    )


def test_a_metric_that_not_every_validation_has_is_allowed():
    here = moment(9, values={"valid/accuracy": 0.5})
    assert reason(Checkpoint(keep_best="valid/loss"), here, [saved(1, loss=0.4)]) is None


def test_the_direction_is_needed_only_when_there_is_a_value():
    known = {}
    policy = Checkpoint(keep_best="valid/iou").policy(known.get)
    assert policy.save_reason(moment(1), [saved(1)]) is None and policy.names_to_delete([saved(1)]) == []
    here = moment(1, values={"valid/iou": 0.1})
    with pytest.raises(InvalidArgument) as caught:
        policy.save_reason(here, [])
    assert str(caught.value) == (
        "it is not known whether a low or a high 'valid/iou' is better; "
        'pass Checkpoint(keep_best=\'valid/iou\', direction="min") or direction="max"'
    )
    known["valid/iou"] = "max"
    assert policy.save_reason(here, [saved(1, values={"valid/iou": 0.2})]) is None


def test_a_given_direction_takes_precedence():
    there = [saved(1, loss=0.5), saved(2, loss=0.2), saved(3)]
    assert deleted(Checkpoint(keep_last=1, keep_best="valid/loss", direction="max"), there, "min") == ["2"]


@pytest.mark.parametrize(("every", "updates"), [("epoch", []), (3, [0, 3, 6]), ("1 minute", [0, 1, 2, 3, 4, 5, 6, 7])])
def test_a_policy_is_asked_only_where_it_can_be_due(every, updates):
    policy = Checkpoint(every=every, keep_best="valid/loss").policy()
    assert [update for update in range(8) if policy.may_save_at(update)] == updates
    assert policy.uses_clock == (every == "1 minute")


# What to delete


@pytest.mark.parametrize(
    ("count", "there", "gone"),
    [
        (2, [], []),
        (2, [saved(1), saved(2)], []),
        (2, [saved(1), saved(2), saved(3), saved(4)], ["1", "2"]),
        (1, [saved(1), saved(1, suffix=".1")], ["1"]),
        (1, [saved(1), saved(2, resumable=False)], []),
        (1, [saved(1), saved(2, resumable=False), saved(3, resumable=False)], ["2"]),
        (1, [saved(1), saved(2, resumable=False), saved(3)], ["1", "2"]),
        (2, [saved(1), saved(2, resumable=False), saved(3)], ["2"]),
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
        ("min", [saved(1, loss=infinity), saved(2, loss=nan), saved(3, loss=-infinity), saved(4)], ["1", "2"]),
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


@pytest.mark.parametrize(
    "checkpoint",
    [
        Checkpoint(),
        Checkpoint(every=100, keep_last=5, keep_best="valid/f1", direction="max", background=False, deadline=1.7e9),
        Checkpoint(every="2.5 minutes"),
    ],
    ids=["default", "all", "minutes"],
)
def test_settings_are_restored_from_json(checkpoint):
    assert Checkpoint.from_dict(json.loads(json.dumps(checkpoint.to_dict()))) == checkpoint


INTERVAL = 'expected "epoch", a number of updates of at least 1, or a time such as "10 minutes"'


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(({"every": every}, f"every={every!r}: {INTERVAL}") for every in (0, -5, "", "epochs", "10", "ten minutes")),
        *(({"every": every}, f"every={every!r}: {INTERVAL}") for every in ("0 minutes", "-1 minutes", "1 minute\n")),
        ({"every": True}, "every: expected int | str, got True"),
        ({"every": 1.5}, "every: expected int | str, got 1.5"),
        ({"keep_last": 0}, "keep_last=0: expected a number of checkpoints of at least 1"),
        ({"keep_best": ""}, "keep_best='': expected the name of a metric, such as \"valid/loss\""),
        ({"direction": "up"}, "direction: expected "),
        ({"deadline": float("nan")}, "deadline=nan: expected seconds since 1970, as time.time() returns"),
        ({"background": 1}, "background: expected bool, got 1"),
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
        (0.0, {}, 0.0),
        *((None, {"SLURM_JOB_END_TIME": text}, None) for text in ("", "Unknown", "0", "nan", "inf")),
    ],
)
def test_the_deadline_is_the_users_or_that_of_the_cluster(given, environ, deadline):
    assert Checkpoint(deadline=given).find_deadline(environ) == deadline
