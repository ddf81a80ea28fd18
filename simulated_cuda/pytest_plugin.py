"""Makes a test fail if its streams race, or if it leaves CUDA graphs behind. `tests/conftest.py` loads it."""

import gc

import pytest
import torch

from simulated_cuda import control


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    torch.cuda.synchronize()  # work of the test before this one is done
    control.take_races()
    result = yield
    if races := control.take_races():
        pytest.fail("streams race: " + "; ".join(races), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    item.stash[_GRAPHS] = control.live_graphs()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    result = yield
    if control.live_graphs() > item.stash[_GRAPHS]:
        gc.collect()
        left = control.live_graphs() - item.stash[_GRAPHS]
        if left > 0:
            pytest.fail(f"the test leaves {left} CUDA graphs behind", pytrace=False)
    return result


_GRAPHS = pytest.StashKey[int]()
