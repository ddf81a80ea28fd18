"""A run on two hosts: it spans both, ends on both when the cable is pulled, and resumes when it is back."""

import time

import pytest

from stoker.record import Run
from tests.distributed.hosts import ADDRESSES, two_hosts, why_no_hosts
from tests.distributed.processes import run
from tests.distributed.test_torchrun import digests, wait_for, whole
from torture.processes import TIMEOUT, Launch, rendezvous
from torture.runs import checkpoints_of

WHY_NOT = why_no_hosts()
LOST = "PeerFailed: the connection to the other ranks was lost"


def on_both(hosts, script, folder, name):
    """A start of the script with one rank on each host; they meet on the first."""
    started = []
    for place, (host, card, address) in enumerate(zip(hosts.names, hosts.cards, ADDRESSES, strict=True)):
        meeting = rendezvous(f"{ADDRESSES[0]}:29400", name, nodes="2", settings=f"is_host={int(place == 0)}")
        command = [f"--local-addr={address}", *meeting, "-m", "tests.distributed.scripts", script, str(folder)]
        environment = {"GLOO_SOCKET_IFNAME": card, "TP_SOCKET_IFNAME": card}
        prints = folder / f"{name}-{place}.txt"
        started.append(Launch(*command, prints=prints, environment=environment, host=host))
    return started


def ended(launch):
    """What is printed once the ranks have ended. torchrun's own agent waits longer for a store on the other host."""
    until = time.monotonic() + TIMEOUT
    while launch.everybody():
        assert time.monotonic() < until, f"a rank has not ended for {TIMEOUT} seconds:\n{launch.printed()}"
        time.sleep(0.1)
    return launch.printed()


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.soak
def test_a_run_on_two_hosts_survives_the_loss_of_the_network(tmp_path):
    first, second = run(whole, 2, str(tmp_path / "local"))
    undisturbed = f"digest {first} {second}"
    with two_hosts() as hosts:
        started = on_both(hosts, "slow", tmp_path, "cut")
        again = []
        try:
            wait_for((tmp_path / "inside").exists, started)
            hosts.pull()
            printed = [ended(each) for each in started]
            assert all(LOST in each for each in printed), printed
            assert started[0].wait() == 1
            assert [digests(each) for each in started] == [[], []]
            left = checkpoints_of(tmp_path / "run").newest().saved
            assert left.ended is None and left.epoch in (1, 2)
            started[1].end()
            hosts.plug_in()
            (tmp_path / "fast").touch()
            again = on_both(hosts, "slow", tmp_path, "again")
            assert [each.wait() for each in again] == [0, 0], [each.printed() for each in again]
        finally:
            for each in [*started, *again]:
                each.end()
    assert sorted(line for each in again for line in digests(each)) == [undisturbed]
    resumes = Run.open(tmp_path / "run").record.events_of("resume")
    assert [event.update for event in resumes] == [left.update]
