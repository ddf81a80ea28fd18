"""Makes a test fail if its streams race, or if it leaves CUDA graphs behind. `tests/conftest.py` loads it."""

import gc

import pytest

from simulated_cuda._device import B as backend


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    backend.take_races()
    result = yield
    if races := backend.take_races():
        pytest.fail("streams race: " + "; ".join(races), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    item.stash[_GRAPHS] = backend.live_graphs()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    result = yield
    if backend.live_graphs() > item.stash[_GRAPHS]:
        gc.collect()
        left = backend.live_graphs() - item.stash[_GRAPHS]
        if left > 0:
            pytest.fail(f"the test leaves {left} CUDA graphs behind", pytrace=False)
    return result


_GRAPHS = pytest.StashKey[int]()
