import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Skips fsync: tests of checkpoints cover power cuts, and here hundreds of fits would only wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
