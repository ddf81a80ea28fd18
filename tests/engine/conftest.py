"""What the tests of this folder share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """What a power cut would leave is tested with the checkpoints; here hundreds of fits only wait for it."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
