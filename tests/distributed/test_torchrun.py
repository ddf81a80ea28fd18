"""Runs under torchrun: ranks and agents that die, return or fail, and the run afterwards."""

import json
import signal
import socket
import time
from collections import Counter

import pytest

from stoker.record import Run
from tests.distributed import scripts
from tests.distributed.processes import run
from torture.processes import Launch, rendezvous, standalone
from torture.runs import checkpoints_of


@pytest.fixture
def launch(tmp_path):
    """Starts torchrun; kills remaining processes at the end."""
    started = []

    def start(name, arguments, **environment):
        script = ["-m", "tests.distributed.scripts", name, str(tmp_path)]
        prints = tmp_path / f"printed-{len(started)}.txt"
        started.append(Launch(*arguments, *script, prints=prints, environment=environment))
        return started[-1]

    yield start
    for each in started:
        each.end()


def wait_for(condition, launches):
    """Waits for something to happen; none of the launches may end before it."""
    while not condition():
        assert not any(each.is_over() for each in launches), "\n".join(each.printed() for each in launches)
        time.sleep(0.02)


def digests(launched):
    return [line for line in launched.printed().splitlines() if line.startswith("digest")]


def whole(rank, size, folder):
    return scripts.digest(scripts.durable(folder), scripts.Path(folder, "run"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The digests of two ranks that are not interrupted."""
    first, second = run(whole, 2, str(tmp_path_factory.mktemp("whole")))
    assert first == second
    return f"digest {first} {second}"


# --- restarts


@pytest.mark.soak
def test_a_killed_rank_is_restarted_and_the_run_ends_in_the_same_bits(launch, tmp_path, undisturbed):
    started = launch("dies_once", standalone(2, restarts=3))
    assert started.wait() == 0, started.printed()
    assert (tmp_path / "died").exists()
    assert digests(started) == [undisturbed]
    resumes = Run.open(tmp_path / "run").record.events_of("resume")
    assert [(event.epoch, event.batch) for event in resumes] == [(2, 4)]  # of a checkpoint every third update


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def seen(folder):
    """(generation, size, epoch, batch, samples) of every batch that some rank has trained on."""
    return [json.loads(line) for file in folder.glob("seen-*") for line in file.read_text().splitlines()]


@pytest.mark.soak
def test_every_sample_is_used_once_when_a_node_is_lost_and_another_joins(launch, tmp_path):
    place = f"127.0.0.1:{free_port()}"

    def node(is_host):
        more = f"is_host={is_host},keep_alive_max_attempt=3"
        agent = rendezvous(place, "nodes", nodes="1:2", restarts=3, settings=more)
        # torch 2.13 tells the address of its shared store in the first round only: who comes later waits in vain.
        return launch("counts", ["--local-addr=127.0.0.1", *agent], TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    def sizes():
        return {size for _, size, *_ in seen(tmp_path)}

    stays, goes = node(1), node(0)
    wait_for(lambda: any(size == 2 and epoch == 2 for _, size, epoch, *_ in seen(tmp_path)), [stays, goes])
    goes.end()
    alone_since = {each[0] for each in seen(tmp_path)}
    wait_for(lambda: any(size == 1 and each not in alone_since for each, size, *_ in seen(tmp_path)), [stays])
    comes = node(0)
    assert (stays.wait(), comes.wait()) == (0, 0), stays.printed() + comes.printed()
    assert sizes() == {1, 2}
    assert_each_once(seen(tmp_path))
    lives = dict(sorted((generation, size) for generation, size, *_ in seen(tmp_path)))
    assert list(lives.values())[-3:] == [2, 1, 2]


def assert_each_once(batches):
    """Of a batch that was trained again after a restart, the last time counts."""
    last = {}
    for generation, _, epoch, batch, _ in batches:
        last[epoch, batch] = max(generation, last.get((epoch, batch), 0))
    counts = {}
    for generation, _, epoch, batch, ids in batches:
        if last[epoch, batch] == generation:
            counts.setdefault(epoch, Counter()).update(ids)
    assert counts == {epoch: Counter(range(scripts.SAMPLES)) for epoch in range(1, 7)}


# --- ends


@pytest.mark.soak
def test_an_exception_on_one_rank_ends_all_with_its_traceback_first(launch, tmp_path):
    started = launch("fails", standalone(2))
    assert started.wait() == 1
    printed = started.printed()
    message = "rank 1 has failed: ValueError: the disk of this node is gone; its traceback is in its own output"
    its, others = printed.index("[rank1]: ValueError: the disk of this node"), printed.index(f"PeerFailed: {message}")
    assert printed.index("Traceback") < its < printed.index("[rank0]: Traceback") < others
    assert [event.text for event in Run.open(tmp_path / "run").record.events_of("error")] == [f"PeerFailed: {message}"]


# --- the agent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
@pytest.mark.soak
def test_without_the_agent_the_ranks_end_in_order_and_the_run_resumes(launch, tmp_path, undisturbed, number):
    started = launch("slow", standalone(2))
    wait_for((tmp_path / "inside").exists, [started])
    started.send(number)
    assert started.wait() == (1 if number == signal.SIGTERM else -number)
    assert digests(started) == []
    (left,) = checkpoints_of(tmp_path / "run").saved()[-1:]
    assert left.ended is None and left.reason.startswith("stopped: ")
    assert (left.epoch, Run.open(tmp_path / "run").record.events_of("end")[-1].update) == (2, left.update)
    (tmp_path / "fast").touch()
    again = launch("slow", standalone(2))
    assert again.wait() == 0, again.printed()
    assert digests(again) == [undisturbed]
