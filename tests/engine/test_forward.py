from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker.engine._forward import call_as_forward


class Sharded(nn.Linear):
    """As FSDP's modules look from outside."""

    def unshard(self):
        raise AssertionError("nobody has to ask for that")


@pytest.fixture
def seen(monkeypatch):
    """What FSDP is told of, and which tensors it finds there."""
    import torch.distributed.fsdp as fsdp

    found = []

    def register(module, name):
        own = getattr(module, name)
        setattr(module, name, lambda *args: found.append(own(*args)))

    monkeypatch.setattr(fsdp, "register_fsdp_forward_method", register)
    return found


def test_a_plain_model_s_step_is_just_called():
    model = nn.Linear(1, 1)
    assert call_as_forward(model, lambda x: x + 1, 2) == 3
    assert not hasattr(model, "_as_forward")


def test_a_sharded_model_s_step_is_a_forward_that_gives_its_loss(seen):
    model, loss = Sharded(1, 1), torch.tensor(2.0)
    output = SimpleNamespace(loss=loss, logits=torch.zeros(3))
    assert call_as_forward(model, lambda: output) is output
    assert call_as_forward(model, lambda: loss) is loss
    assert seen[0] is loss and seen[1] is loss
    assert call_as_forward(model, lambda: "a text") == "a text"


def test_the_end_of_a_step_is_the_end_of_a_forward(seen):
    def step():
        yield 1
        return "over"

    model, steps = Sharded(1, 1), step()
    assert call_as_forward(model, next, steps) == 1
    with pytest.raises(StopIteration, match="over"):
        call_as_forward(model, next, steps)
    assert len(seen) == 2
