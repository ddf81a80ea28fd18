"""Copies between host and device: what is pinned arrives when the host waits for it, what is pageable at once."""

import pytest
import torch

from tests.simulated_cuda.helpers import control, races_of

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]


def test_a_copy_to_the_host_that_nobody_has_waited_for_reads_nan():
    x = torch.ones(4, device="cuda")
    host = x.to("cpu", non_blocking=True)
    assert host.isnan().all() and host.is_pinned()
    torch.cuda.synchronize()
    assert host.tolist() == [1] * 4


def test_a_copy_into_pinned_memory_reads_what_was_there_until_the_host_waits():
    x, host, done = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory(), torch.cuda.Event()
    host.copy_(x, non_blocking=True)
    done.record()
    assert host.tolist() == [0] * 4
    x.fill_(2)  # the copy has taken the values of before
    done.synchronize()
    assert host.tolist() == [1] * 4


def test_an_event_before_the_copy_does_not_make_it_arrive():
    x, host, early = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory(), torch.cuda.Event()
    early.record()
    host.copy_(x, non_blocking=True)
    early.synchronize()
    assert host.tolist() == [0] * 4
    torch.cuda.synchronize()
    assert host.tolist() == [1] * 4


def test_another_stream_does_not_make_a_copy_arrive():
    x, host, side = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory(), torch.cuda.Stream()
    host.copy_(x, non_blocking=True)
    side.synchronize()
    assert host.tolist() == [0] * 4
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [1] * 4


def test_an_event_says_at_first_that_a_copy_is_not_done():
    x, host, done = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory(), torch.cuda.Event()
    host.copy_(x, non_blocking=True)
    done.record()
    assert not done.query()
    while not done.query():
        pass
    assert host.tolist() == [1] * 4


def test_a_blocking_copy_arrives_at_once():
    x = torch.ones(4, device="cuda")
    before = control().synchronizations()
    assert x.cpu().tolist() == [1] * 4
    assert control().synchronizations() == before + 1


@pytest.mark.parametrize("waits", [True, False])
def test_pinned_memory_that_is_overwritten_before_its_copy_is_done_is_a_race(waits):
    host = torch.zeros(4).pin_memory()

    def program():
        x = host.to("cuda", non_blocking=True)
        if waits:
            torch.cuda.current_stream().synchronize()
        host.fill_(1)
        return x

    races = races_of(program)
    assert not races if waits else any("pinned memory was overwritten" in race for race in races)


def test_memory_is_pinned_in_every_way_that_torch_offers():
    made = [
        torch.zeros(4).pin_memory(),
        torch.empty(4, pin_memory=True),
        torch.zeros(4, pin_memory=True),
        torch.empty_like(torch.zeros(4), pin_memory=True),
    ]
    assert all(each.is_pinned() for each in made)
    assert not torch.zeros(4).is_pinned() and not torch.zeros(4, device="cuda").is_pinned()


SYNCHRONIZES = {
    "item": lambda x: x.sum().item(),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: torch.zeros(4).to("cuda"),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
}
DOES_NOT = {
    "arithmetic": lambda x: (x * 2 + 1).sum(),
    "pinned": lambda x: torch.zeros(4, pin_memory=True).to("cuda", non_blocking=True),
    "to pinned": lambda x: torch.zeros(4, pin_memory=True).copy_(x, non_blocking=True),
    "indices": lambda x: x[torch.zeros(2, device="cuda", dtype=torch.int64)],
    "where": lambda x: torch.where(x > 0, x, 0 * x),
}


@pytest.mark.parametrize("name", [*SYNCHRONIZES, *DOES_NOT])
def test_the_debug_mode_for_synchronization_raises(name):
    x = torch.ones(4, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        if name in DOES_NOT:
            DOES_NOT[name](x)
        else:
            with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                SYNCHRONIZES[name](x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def test_the_debug_mode_for_synchronization_warns():
    x = torch.ones(4, device="cuda")
    torch.cuda.set_sync_debug_mode("warn")
    try:
        assert torch.cuda.get_sync_debug_mode() == 1
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
            x.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
