"""The generator of the device: separate from the host's; a capture leaves it alone, and replays advance it."""

import pytest
import torch

from tests.simulated_cuda.helpers import capture

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]


def draw():
    return torch.rand(8, device="cuda")


def test_the_device_and_the_host_draw_from_separate_generators():
    torch.manual_seed(0)
    host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
    first = draw()
    assert torch.equal(torch.get_rng_state(), host) and not torch.equal(torch.cuda.get_rng_state(), device)
    torch.rand(8)
    torch.cuda.set_rng_state(device)
    assert torch.equal(draw(), first)
    assert not torch.equal(draw(), first)


def test_a_seed_sets_both():
    torch.manual_seed(3)
    found = draw(), torch.rand(8)
    torch.manual_seed(3)
    assert torch.equal(draw(), found[0]) and torch.equal(torch.rand(8), found[1])
    torch.cuda.manual_seed(3)
    assert torch.equal(draw(), found[0])


def test_a_capture_leaves_the_generator_alone_and_replays_advance_it():
    torch.manual_seed(0)
    eager = [draw() for _ in range(3)]
    torch.manual_seed(0)
    before = torch.cuda.get_rng_state()
    graph, result = capture(draw)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    for expected in eager[:2]:
        graph.replay()
        assert torch.equal(result, expected)
    assert torch.equal(draw(), eager[2])


def test_dropout_draws_from_the_generator_of_the_device():
    x = torch.ones(1000, device="cuda", requires_grad=True)
    torch.manual_seed(0)
    first = torch.nn.functional.dropout(x, 0.25)
    second = torch.nn.functional.dropout(x, 0.25)
    torch.manual_seed(0)
    assert torch.equal(torch.nn.functional.dropout(x, 0.25), first)
    assert not torch.equal(first, second)
    kept = first > 0
    assert 650 < kept.sum() < 850 and torch.allclose(first[kept], torch.tensor(1 / 0.75, device="cuda"))
    first.sum().backward()
    assert torch.equal(x.grad, first)


def test_permutations_and_normal_numbers_are_captured():
    graph, result = capture(lambda: (torch.randperm(10, device="cuda"), torch.randn(10, device="cuda")))
    graph.replay()
    first = [each.clone() for each in result]
    graph.replay()
    assert sorted(result[0].tolist()) == list(range(10))
    assert not torch.equal(first[1], result[1])
