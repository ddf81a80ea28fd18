"""Settings for random programs."""

import os

import pytest


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Saves the time of `fsync`, and sets what `deterministic=True` needs on a GPU."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
