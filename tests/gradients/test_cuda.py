"""A loop of the user's own on a GPU, in a CUDA graph that the user records."""

import pytest
import torch
from torch import nn

import stoker
from stoker import optim
from stoker.gradients import Accumulator, Gradients, _backward

pytestmark = pytest.mark.cuda


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)).cuda()


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator).cuda() for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
def test_a_recorded_loop_has_the_bits_of_one_that_runs_operation_by_operation(name, dtype):
    settings = {"fused": True} if name in ("AdamW", "SGD") else {"capturable": True}

    def make():
        model = network().to(dtype)
        optimizer = getattr(optim, name)(**settings).init(model)
        rate, x = torch.zeros((), device="cuda"), torch.zeros(5, 4, device="cuda", dtype=dtype)

        def step():
            grads = stoker.backward(model(x).square().mean(), model)
            optimizer.step(grads.clip_norm(0.5), lr=rate)

        return model, rate, x, step

    def train(run_step, rate, x):
        torch.cuda.manual_seed(5)
        for number, batch in enumerate(batches()):
            rate.fill_(0.1 / (number + 1))
            x.copy_(batch)
            run_step()

    model, rate, x, step = make()
    step()  # creates the optimizer's state
    train(step, rate, x)
    recorded, rate, x, step = make()
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    train(graph.replay, rate, x)
    for one, other in zip(model.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gradients_of_a_new_dtype_can_be_recorded_first():
    """The constant that a backward pass starts from is not kept: it belongs to the graph."""
    x = torch.ones(3, device="cuda", dtype=torch.float16)
    model = nn.Linear(3, 1, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grads = stoker.backward(model(x).sum(), model, create_graph=False)
    del graph
    again = stoker.backward(model(x).sum(), model)
    assert again["weight"].tolist() == [[1.0, 1.0, 1.0]]
    del grads


def test_streams_may_differentiate_at_the_same_time(monkeypatch):
    """The constant that backward passes start from is written by the first one, and read by all."""
    monkeypatch.setattr(_backward, "_ones", {})
    model, x, found = network(), batches(1)[0], []
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(20_000_000 // (1 + len(found)))  # the first one writes last
            found.append(stoker.backward(model.eval()(x).square().mean(), model))
    torch.cuda.synchronize()
    for other in found[1:]:
        assert all(torch.equal(value, found[0][name]) for name, value in other.items())


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_an_open_window_is_saved_with_a_weight_on_either_device(where):
    """Masked tokens are counted on the device, and samples are numbers or tensors on the host."""
    model, weights = network(), [torch.tensor(3.0, device=where), torch.tensor(5.0, device=where)]

    def gradients(number):
        tensors = {name: torch.full_like(each, number + 0.1) for name, each in model.named_parameters()}
        return Gradients(tensors, model)

    whole, first, second = Accumulator(), Accumulator(), Accumulator()
    whole.add(gradients(1), weight=weights[0])
    first.add(gradients(1), weight=weights[0])
    state = first.state_dict()
    assert state["weight_on_host"] == (where == "cpu")
    second.load_state_dict(state, model)
    for window in (whole, second):
        window.add(gradients(2), weight=weights[1])
    assert second.weight.device.type == where
    expected, found = whole.take(), second.take()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
