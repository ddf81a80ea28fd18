"""Settings for random programs."""

import os

import pytest


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Saves the time of `fsync`."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
