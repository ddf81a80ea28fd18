"""What a user says about checkpoints: it is checked where it is written, kept as JSON, and made into a policy."""

import json

import pytest

from stoker.checkpoint._checkpoint import Checkpoint, deadline
from stoker.checkpoint._policy import Delete, Save
from stoker.errors import ConfigError, InvalidArgument
from tests.checkpoint.test_policy import at, names, saved


def unknown(name):
    return None


def test_by_default_every_epoch_is_saved_and_two_are_kept():
    policy = Checkpoint().policy(unknown)
    there = [saved(1), saved(2), saved(3)]
    assert policy(at(3, epoch_ended=True), there) == [Save("every epoch"), Delete("00000001")]
    assert policy(at(3), there[1:]) == []


def test_the_best_is_kept_beside_the_last():
    policy = Checkpoint(every=10, keep_last=1, keep_best="valid/loss").policy(lambda name: "min")
    there = [saved(1, loss=0.5), saved(2, loss=0.2), saved(3, loss=0.3)]
    assert names(policy(at(3), there)) == [1]
    assert policy(at(10, loss=0.1), [])[0] == Save("every 10 updates; best valid/loss so far: 0.1000")


def test_a_direction_that_was_given_counts():
    there = [saved(1, loss=0.5), saved(2, loss=0.2), saved(3)]
    policy = Checkpoint(keep_last=1, keep_best="valid/loss", direction="max").policy(lambda name: "min")
    assert names(policy(at(3), there)) == [2]


@pytest.mark.parametrize(
    "checkpoint",
    [
        Checkpoint(),
        Checkpoint(every=100, keep_last=5, keep_best="valid/f1", direction="max", background=False, deadline=1.7e9),
        Checkpoint(every="2.5 minutes"),
    ],
    ids=["default", "all", "minutes"],
)
def test_it_is_kept_as_json(checkpoint):
    assert Checkpoint.from_dict(json.loads(json.dumps(checkpoint.to_dict()))) == checkpoint


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"every": 0}, 'every=0: expected "epoch", a number of updates of at least 1, or a time such as "10 minutes"'),
        ({"every": "week"}, "every='week': expected \"epoch\""),
        ({"every": True}, "every: expected int | str, got True"),
        ({"every": 1.5}, "every: expected int | str, got 1.5"),
        ({"keep_last": 0}, "keep_last=0: expected a number of checkpoints of at least 1"),
        ({"keep_best": ""}, "keep_best='': expected the name of a number, such as \"valid/loss\""),
        ({"direction": "up"}, "direction: expected "),
        ({"deadline": float("nan")}, "deadline=nan: expected seconds since 1970, as time.time() gives them"),
        ({"background": 1}, "background: expected bool, got 1"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_can_not_be_meant_is_refused_where_it_is_written(given, text):
    with pytest.raises((ConfigError, InvalidArgument)) as caught:
        Checkpoint(**given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "environ", "ends"),
    [
        (None, {}, None),
        (None, {"SLURM_JOB_END_TIME": "1700000000"}, 1.7e9),
        (1.6e9, {"SLURM_JOB_END_TIME": "1700000000"}, 1.6e9),
        (0.0, {}, 0.0),
        (None, {"SLURM_JOB_END_TIME": ""}, None),
        (None, {"SLURM_JOB_END_TIME": "Unknown"}, None),
        (None, {"SLURM_JOB_END_TIME": "0"}, None),
        (None, {"SLURM_JOB_END_TIME": "nan"}, None),
        (None, {"SLURM_JOB_END_TIME": "inf"}, None),
    ],
)
def test_the_deadline_is_the_users_or_the_clusters(given, environ, ends):
    assert deadline(Checkpoint(deadline=given), environ) == ends
