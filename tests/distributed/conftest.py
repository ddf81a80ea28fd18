"""Leaves process groups that a test has joined in the test process."""

import pytest

from stoker.distributed import leave


@pytest.fixture(autouse=True)
def alone_again():
    """Destroys the process group that a test has made."""
    yield
    leave()
