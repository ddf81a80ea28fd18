"""What the tests of resuming share."""

import os

import pytest


@pytest.fixture
def fast(monkeypatch):
    """For hundreds of starts: nothing waits for the disk, as no machine ends here, and facts are found once."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr("stoker.record._run.git_commit", lambda: None)
