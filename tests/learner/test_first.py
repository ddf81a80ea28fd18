import pytest

from stoker.distributed import World
from stoker.errors import RunExists, StokerError
from stoker.learner._first import only_by_first
from tests.distributed.processes import run


def test_alone_the_work_is_just_done():
    assert only_by_first(World(), lambda: 3) == 3
    with pytest.raises(KeyError):
        only_by_first(World(), lambda: {}["x"])


def outcomes(rank, size):
    from stoker.distributed import joined

    world, done = joined(), []

    def work():
        done.append(rank)
        return "made"

    class Odd(Exception):
        pass

    def fail(error):
        def work():
            raise error

        return work

    found = [only_by_first(world, work), done]
    for error, kind in ((RunExists("taken"), RunExists), (PermissionError("no"), PermissionError)):
        with pytest.raises(kind, match=str(error)):
            only_by_first(world, fail(error))
    with pytest.raises(Odd if rank == 0 else StokerError) as odd:
        only_by_first(world, fail(Odd("strange")))
    return [*found, str(odd.value)]


def test_one_does_it_and_all_have_its_outcome():
    assert run(outcomes, 2) == [["made", [0], "strange"], [None, [], "Odd: strange"]]
