"""Tests of many processes: what one of them joins in the test's own process, it leaves."""

import pytest

from stoker.distributed import leave


@pytest.fixture(autouse=True)
def alone_again():
    """A process group that a test has made here is gone after it."""
    yield
    leave()
