import os

import pytest


@pytest.fixture
def fast(monkeypatch):
    """For hundreds of starts: nothing waits for the disk, and git is not found, which a run asks for the commit."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setenv("PATH", "")
