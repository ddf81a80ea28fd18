"""Two simulated hosts: network namespaces with a virtual cable that can be disconnected."""

import os
import shutil
import subprocess
from contextlib import contextmanager

ADDRESSES = ("10.213.7.1", "10.213.7.2")


class Hosts:
    """The names of the namespaces, and the cable."""

    def __init__(self, names):
        self.names = names

    @property
    def cards(self):
        """The name of each host's end of the cable."""
        return [f"{name}-c" for name in self.names]

    def pull(self):
        _ip("-n", self.names[0], "link", "set", self.cards[0], "down")

    def plug_in(self):
        _ip("-n", self.names[0], "link", "set", self.cards[0], "up")


@contextmanager
def two_hosts():
    """Needs the right to make namespaces: see `why_no_hosts`."""
    hosts = Hosts([f"st{os.getpid()}{end}" for end in "ab"])  # an interface's name has 15 letters at the most
    try:
        for name in hosts.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        first, second = hosts.cards
        _ip("-n", hosts.names[0], *_cable(first, second, hosts.names[1]))
        for name, card, address in zip(hosts.names, hosts.cards, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", card)
            _ip("-n", name, "link", "set", card, "up")
        yield hosts
    finally:
        for name in hosts.names:  # its cards go with it
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def why_no_hosts():
    """Why this machine can't simulate hosts, or `None`."""
    if shutil.which("ip") is None:
        return "there is no program `ip` here, which makes network namespaces"
    name = f"st{os.getpid()}x"
    try:
        _ip("netns", "add", name)
    except AssertionError as error:
        return f"network namespaces are not permitted here: {error}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return None


def _cable(first, second, other):
    return ["link", "add", "name", first, "type", "veth", "peer", "name", second, "netns", other]


def _ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
