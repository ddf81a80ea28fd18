import os

import pytest


@pytest.fixture(autouse=True)
def without_sync(monkeypatch):
    """Hundreds of fits would only wait for the disk: tests/checkpoint covers power cuts."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
