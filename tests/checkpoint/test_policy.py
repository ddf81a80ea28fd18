"""Policies: tables of plain values in, actions out; and what a composed policy never deletes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint._place import Moment, Saved
from stoker.checkpoint._policy import Delete, Rule, Save, as_rule, composed, every, keep_best, keep_last
from stoker.errors import InvalidArgument, NoSuchMetric


def saved(update, *, suffix="", loss=None, **more):
    values = {} if loss is None else {"valid/loss": loss}
    defaults = {"epoch": 1, "batch": update, "run": "5f0c", "time": 0.0, "bytes": 1, "values": values}
    return Saved(update=update, name=f"{update:08}{suffix}", **{**defaults, **more})


def at(update, *, loss=None, **more):
    values = {} if loss is None else {"valid/loss": loss}
    return Moment(update=update, **{"epoch": 1, "batch": update, "values": values, **more})


def names(actions):
    return [int(each.name[:8]) for each in actions if isinstance(each, Delete)]


@pytest.mark.parametrize(
    ("here", "there", "reasons"),
    [
        (at(0), [], []),
        (at(4), [], []),
        (at(5), [], ["every 5 updates"]),
        (at(5), [saved(5)], []),  # another batch of the window that follows update 5
        (at(5, batch=11), [saved(5, batch=10)], []),
        (at(5), [saved(5, resumable=False)], ["every 5 updates"]),  # the outcome of a fit that was cut short
        (at(10), [saved(5)], ["every 5 updates"]),
        (at(10), [saved(5), saved(15)], ["every 5 updates"]),
        (at(12, epoch_ended=True), [saved(10)], []),
    ],
)
def test_every_so_many_updates(here, there, reasons):
    assert every(5)(here, there) == [Save(reason) for reason in reasons]


def test_every_update_is_said_so():
    assert every(1)(at(3), [saved(2)]) == [Save("every update")]


@pytest.mark.parametrize("ended", [True, False])
def test_every_epoch(ended):
    assert every("epoch")(at(7, epoch_ended=ended), [saved(7)]) == [Save("every epoch")] * ended


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
@pytest.mark.parametrize("interval", ["10 minutes", timedelta(minutes=10)], ids=["text", "timedelta"])
def test_every_so_many_minutes_of_training(interval, minutes, there, is_due):
    assert every(interval)(at(3, minutes=minutes), there) == [Save("every 10 minutes")] * is_due


@pytest.mark.parametrize("interval", ["1 minute", "1 minutes", timedelta(seconds=60)], ids=["one", "ones", "timedelta"])
def test_every_minute_is_said_so(interval):
    assert every(interval)(at(3, minutes=1.0), []) == [Save("every minute")]


def test_parts_of_a_minute():
    assert every("0.5 minutes")(at(3, minutes=0.5), []) == [Save("every 0.5 minutes")]


@pytest.mark.parametrize(
    "interval",
    [
        0,
        -5,
        True,
        2.0,
        None,
        "",
        "epochs",
        "10",
        "ten minutes",
        "0 minutes",
        "-1 minutes",
        "10 minutes\n",
        timedelta(0),
    ],
    ids=repr,
)
def test_an_interval_that_is_none(interval):
    with pytest.raises(InvalidArgument) as caught:
        every(interval)
    assert str(caught.value) == (
        f'every={interval!r}: expected "epoch", a number of updates of at least 1, or a time such as "10 minutes"'
    )


@pytest.mark.parametrize(
    ("count", "there", "deleted"),
    [
        (2, [], []),
        (2, [saved(1), saved(2)], []),
        (2, [saved(1), saved(2), saved(3), saved(4)], [1, 2]),
        (1, [saved(1), saved(1, suffix=".1")], [1]),
        (1, [saved(1), saved(2, resumable=False)], []),
        (1, [saved(1), saved(2, resumable=False), saved(3, resumable=False)], [2]),
        (1, [saved(1), saved(2, resumable=False), saved(3)], [1, 2]),
        (2, [saved(1), saved(2, resumable=False), saved(3)], [2]),
    ],
)
def test_the_last_ones_are_kept(count, there, deleted):
    assert names(keep_last(count)(at(9), there)) == deleted


def test_of_two_at_the_same_update_the_later_is_kept():
    assert keep_last(1)(at(1), [saved(1), saved(1, suffix=".1")]) == [Delete("00000001")]


@pytest.mark.parametrize("count", [0, -1, True, 1.0, None], ids=repr)
def test_none_at_all_can_not_be_kept(count):
    with pytest.raises(InvalidArgument, match=f"^keep_last={count!r}: expected a number of checkpoints of at least 1$"):
        keep_last(count)


nan, infinite = float("nan"), float("inf")


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
        ("min", 0.5, [saved(1, loss=infinite)], True),
        ("max", 0.5, [saved(1, loss=0.4)], True),
        ("max", 0.5, [saved(1, loss=0.6)], False),
    ],
)
def test_a_new_best_is_saved(direction, loss, there, is_best):
    actions = keep_best("valid/loss", direction)(at(9, loss=loss), there)
    assert [each for each in actions if isinstance(each, Save)] == [Save("best valid/loss so far: 0.5000")] * is_best


@pytest.mark.parametrize(
    ("direction", "there", "deleted"),
    [
        ("min", [saved(1, loss=0.4), saved(2, loss=0.3), saved(3, loss=0.5), saved(4)], [1, 3, 4]),
        ("max", [saved(1, loss=0.4), saved(2, loss=0.3), saved(3, loss=0.5), saved(4)], [1, 2, 4]),
        ("min", [saved(1, loss=0.3), saved(2, loss=0.3)], [2]),  # of equal ones the first
        ("min", [saved(1, loss=nan), saved(2, loss=0.3), saved(3, loss=nan)], [1, 3]),
        ("min", [saved(1), saved(2)], [1, 2]),
        ("max", [saved(1, loss=0.3), saved(2, loss=0.9, resumable=False)], [1]),  # an outcome is as good as any
    ],
)
def test_the_best_is_kept(direction, there, deleted):
    assert names(keep_best("valid/loss", direction)(at(9), there)) == deleted


def test_a_number_that_is_missing_is_named_with_those_there_are():
    here = at(9, values={"valid/accuracy": 0.5, "valid/loss": 0.7})
    with pytest.raises(NoSuchMetric) as caught:
        keep_best("valid/acuracy", "max")(here, [saved(1, loss=0.4)])
    assert str(caught.value) == (
        "keep_best='valid/acuracy', and there is no such number; did you mean 'valid/accuracy'? "
        "(there are: valid/accuracy, valid/loss)"
    )


def test_a_number_that_not_every_validation_has_is_none_of_this_validations_business():
    assert keep_best("valid/loss", "min").saves(at(9, values={"valid/accuracy": 0.5}), [saved(1, loss=0.4)]) == []


def test_the_direction_is_asked_for_when_the_number_is_there():
    asked = []

    def direction(name):
        asked.append(name)
        return "max" if len(asked) > 1 else None

    policy = keep_best("valid/iou", direction)
    assert policy(at(1), [saved(1)]) == [Delete("00000001")] and asked == []
    with pytest.raises(InvalidArgument) as caught:
        policy(at(1, values={"valid/iou": 0.1}), [])
    assert str(caught.value) == (
        "is a low or a high 'valid/iou' better? "
        'Say Checkpoint(keep_best=\'valid/iou\', direction="min") or direction="max"'
    )
    assert policy(at(1, values={"valid/iou": 0.1}), [saved(1, values={"valid/iou": 0.2})]) == []


@pytest.mark.parametrize("name", ["", None, 3], ids=repr)
def test_a_best_of_nothing(name):
    with pytest.raises(
        InvalidArgument, match=f'keep_best={name!r}: expected the name of a number, such as "valid/loss"'
    ):
        keep_best(name, "min")


def test_a_direction_that_is_none():
    with pytest.raises(InvalidArgument, match='direction=\'up\': expected "min" or "max"'):
        keep_best("valid/loss", "up")


def test_reasons_are_joined_and_said_once():
    policy = composed([every(5), every("epoch"), every(5)], [keep_last(2), keep_best("valid/loss", "min")])
    assert policy(at(5, epoch_ended=True, loss=0.5), []) == [
        Save("every 5 updates; every epoch; best valid/loss so far: 0.5000")
    ]
    assert policy(at(6), []) == []


def test_what_all_keepers_agree_on_is_deleted():
    policy = composed([], [keep_last(2), keep_best("valid/loss", "min")])
    there = [saved(1, loss=0.5), saved(2, loss=0.2), saved(3, loss=0.3), saved(4), saved(5)]
    assert names(policy(at(5), there)) == [1, 3]


def test_without_keepers_nothing_is_deleted():
    assert composed([every(1)], [])(at(3), [saved(1), saved(2), saved(3)]) == []


def test_what_a_run_goes_on_from_stays_whatever_the_keepers_say():
    policy = composed([], [keep_best("valid/loss", "min")])
    there = [saved(1, loss=0.1), saved(2), saved(3), saved(4, resumable=False)]
    assert names(policy(at(4), there)) == [2]


def test_a_policy_is_any_function():
    def own(here, there):
        return [Save("mine"), *(Delete(each.name) for each in there)]

    assert composed([own], [own])(at(3), [saved(1), saved(2)]) == [Save("mine"), Delete("00000001")]
    rule = as_rule(own)
    assert rule.saves(at(3), [saved(1)]) == [Save("mine")]
    assert rule.deletes(at(3), [saved(1)]) == [Delete("00000001")]
    assert as_rule(rule) is rule


def mine(here, there):
    return []


@pytest.mark.parametrize(
    ("policy", "pace"),
    [
        (every("epoch"), 0),
        (every(6), 6),
        (every("1 minute"), None),
        (as_rule(mine), None),
        (Rule(saves=mine), None),
        (composed([], []), 0),
        (composed([every("epoch")], [keep_last(2), keep_best("valid/loss", "min")]), 0),
        (composed([every(6), every(4), every("epoch")], [keep_last(2)]), 2),
        (composed([every(6), every("1 minute")], [keep_last(2)]), None),
        (composed([every(6)], [mine]), None),
    ],
    ids=["epoch", "updates", "minutes", "function", "rule", "nothing", "default", "both", "mixed", "keeper"],
)
def test_how_often_it_has_to_be_asked(policy, pace):
    assert policy.pace == pace


losses = st.none() | st.floats(width=16)
checkpoints = st.lists(
    st.tuples(st.integers(0, 40), losses, st.booleans()), unique_by=lambda each: each[0], max_size=12
).map(
    lambda rows: [
        saved(update, loss=loss, resumable=goes_on) for update, loss, goes_on in sorted(rows, key=lambda row: row[0])
    ]
)
keepers = st.lists(
    st.integers(1, 4).map(keep_last) | st.sampled_from(["min", "max"]).map(lambda way: keep_best("valid/loss", way)),
    min_size=1,
    max_size=3,
)


@given(checkpoints, keepers, losses)
def test_a_composed_policy_never_deletes_the_last_resumable_nor_what_a_keeper_wants(there, wanting, loss):
    here = at(41, loss=loss)
    deleted = names(composed([every(1)], wanting)(here, there))
    for keeper in wanting:
        assert set(deleted) <= set(names(keeper(here, there)))
    resumable = [each.update for each in there if each.resumable]
    assert not resumable or resumable[-1] not in deleted
    assert not there or there[-1].update not in deleted
    assert deleted == sorted(set(deleted))


intervals = st.integers(1, 12) | st.sampled_from(["epoch", "1 minute"])


@given(checkpoints, st.lists(intervals, max_size=3), keepers, st.integers(0, 40))
def test_nothing_is_saved_between_two_times_of_its_pace(there, given_intervals, wanting, update):
    policy = composed([every(each) for each in given_intervals], wanting)
    if policy.saves(at(update, minutes=60.0), there):
        assert policy.pace is None or (policy.pace > 0 and update % policy.pace == 0)


@given(checkpoints, keepers)
def test_deleting_is_done_in_one_go(there, wanting):
    policy = composed([], wanting)
    deleted = names(policy(at(41), there))
    assert policy(at(41), [each for each in there if each.update not in deleted]) == []


@given(checkpoints, keepers, losses)
def test_asking_changes_nothing(there, wanting, loss):
    before = list(there)
    policy = composed([every(2), every("epoch"), every("1 minute")], wanting)
    assert policy(at(40, loss=loss), there) == policy(at(40, loss=loss), there)
    assert there == before or all(a is b for a, b in zip(there, before, strict=True))
