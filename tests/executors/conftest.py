"""What the tests of this folder share."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """What a power cut would leave is tested with the checkpoints."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def double():
    """Torch's own counters in 64 bits, as the models are: then two ways to the same number are as close."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
