"""What the tests of resuming share."""

import functools
import os

import pytest

from stoker.record import _facts


@pytest.fixture
def fast(monkeypatch):
    """For hundreds of starts: nothing waits for the disk, as no machine ends here, and facts are found once."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(_facts, "git_commit", lambda: None)
    monkeypatch.setattr(_facts, "version_of", functools.cache(_facts.version_of))
