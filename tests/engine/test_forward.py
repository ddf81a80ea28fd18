"""A training step of a model with FSDP runs as one forward, so that FSDP gathers the parameters for it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker.engine._forward import call_as_forward


class Sharded(nn.Linear):
    """Looks like a module of FSDP2."""

    def unshard(self):
        raise AssertionError("FSDP does this itself")


@pytest.fixture
def outputs(monkeypatch):
    """What FSDP's hooks see of the registered methods."""
    found = []

    def register(module, name):
        own = getattr(module, name)
        setattr(module, name, lambda *args: found.append(own(*args)))

    monkeypatch.setattr("torch.distributed.fsdp.register_fsdp_forward_method", register)
    return found


def test_the_step_of_a_plain_model_is_called_directly(outputs):
    assert call_as_forward(nn.Linear(1, 1), lambda x: x + 1, 2) == 3
    assert outputs == []


def test_the_step_of_a_sharded_model_is_a_forward_whose_output_is_the_loss(outputs):
    model, loss = Sharded(1, 1), torch.tensor(2.0)
    output = SimpleNamespace(loss=loss, logits=torch.zeros(3))
    assert call_as_forward(model, lambda: output) is output
    assert call_as_forward(model, lambda: loss) is loss
    assert outputs[0] is loss and outputs[1] is loss
    assert call_as_forward(model, lambda: "a text") == "a text"


def test_the_end_of_a_generator_passes_through_the_forward(outputs):
    def step():
        yield 1
        return "over"

    model, steps = Sharded(1, 1), step()
    assert call_as_forward(model, next, steps) == 1
    with pytest.raises(StopIteration, match="over"):
        call_as_forward(model, next, steps)
    assert len(outputs) == 2
