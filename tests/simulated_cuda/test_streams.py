"""Streams and events: which operations may run at the same time, and what races with what."""

import threading
import time

import pytest
import torch

from tests.simulated_cuda.helpers import capture, races_of

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]


def ones():
    return torch.ones(1000, device="cuda")


def test_work_on_one_stream_is_in_order():
    def program():
        x = ones()
        x.add_(1)
        return (x * 2).sum()

    assert races_of(program) == []


@pytest.mark.parametrize("waits", [True, False])
def test_another_stream_has_to_wait_before_it_reads(waits):
    x, side = ones(), torch.cuda.Stream()
    torch.cuda.synchronize()

    def program():
        x.add_(1)
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return x * 2

    races = races_of(program)
    assert not races if waits else any("reads what aten::add_" in race for race in races)


@pytest.mark.parametrize("waits", [True, False])
def test_another_stream_has_to_wait_before_it_overwrites_what_is_read(waits):
    x, side = ones(), torch.cuda.Stream()
    torch.cuda.synchronize()

    def program():
        kept = x * 2
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.zero_()
        return kept

    races = races_of(program)
    assert not races if waits else any("overwrites what aten::mul" in race for race in races)


@pytest.mark.parametrize("waits", [True, False])
def test_two_streams_that_write_have_to_wait(waits):
    x, side = torch.empty(1000, device="cuda"), torch.cuda.Stream()

    def program():
        x.fill_(1)
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.fill_(2)

    races = races_of(program)
    assert not races if waits else any("writes where aten::fill_" in race for race in races)


@pytest.mark.parametrize("right", [True, False])
def test_an_event_orders_what_was_recorded_before_it_only(right):
    x, side, event = ones(), torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()

    def program():
        if right:
            x.add_(1)
            event.record()
        else:
            event.record()
            x.add_(1)
        side.wait_event(event)
        with torch.cuda.stream(side):
            return x * 2

    assert bool(races_of(program)) is not right


@pytest.mark.parametrize("how", ["event", "stream", "device", "item"])
def test_a_host_that_has_waited_orders_what_it_launches_then(how):
    x, side, event = ones(), torch.cuda.Stream(), torch.cuda.Event()

    def program():
        x.add_(1)
        event.record()
        wait = {
            "event": event.synchronize,
            "stream": torch.cuda.current_stream().synchronize,
            "device": torch.cuda.synchronize,
            "item": x.sum().item,
        }
        wait[how]()
        with torch.cuda.stream(side):
            return x * 2

    assert races_of(program) == []


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_of_another_stream_is_used_again_too_early_without_record_stream(recorded):
    side = torch.cuda.Stream()

    def program():
        x = ones()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        if recorded:
            x.record_stream(side)
        del x
        again = ones()  # torch may give it the memory that `side` still reads
        torch.cuda.current_stream().wait_stream(side)
        return y, again

    races = races_of(program)
    assert not races if recorded else any("record_stream is missing" in race for race in races)


def test_replays_on_two_streams_race_on_the_memory_of_the_graph():
    x, first, second = ones(), torch.cuda.Stream(), torch.cuda.Stream()
    graph, _ = capture(lambda: (x * 2).sum())

    def replays(waits):
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            graph.replay()
        if waits:
            second.wait_stream(first)
        with torch.cuda.stream(second):
            graph.replay()

    assert races_of(lambda: replays(True)) == []
    assert races_of(lambda: replays(False)) != []


def test_each_thread_has_a_current_stream():
    found = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
        assert found == [torch.cuda.default_stream()] != [torch.cuda.current_stream()]


def test_backward_runs_on_the_stream_of_forward():
    x, side = ones().requires_grad_(), torch.cuda.Stream()
    torch.cuda.synchronize()

    def program():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = (x * x).sum()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
        return x.grad + 1

    assert races_of(program) == []


def test_sleep_keeps_the_stream_busy():
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    start = time.monotonic()
    torch.cuda._sleep(400_000_000)  # 0.2 s
    event.record()
    assert not event.query() and not event.query()
    side.synchronize()  # another stream
    assert time.monotonic() - start < 0.2
    event.synchronize()
    assert time.monotonic() - start >= 0.2
    assert event.query()
