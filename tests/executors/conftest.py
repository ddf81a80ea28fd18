"""Fixtures of the executors' tests."""

import pytest
import torch

from stoker.engine import _curve


@pytest.fixture
def double():
    """Makes float64 the default, so that two ways to compute a number agree closely."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def few_points(monkeypatch):
    """The curve gets a point after 1, 2, 4, 8, … updates, so that short fits have long spans too."""
    monkeypatch.setattr(_curve, "_POINTS", 1)
