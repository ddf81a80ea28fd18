"""A kill at every single change that a fit makes to the disk in two saves, each of which deletes an old checkpoint."""

import itertools
import os
import shutil
import signal
import traceback

import pytest
import torch
from torch import nn

import stoker
from stoker import optim
from stoker.checkpoint import _disk
from tests.loop.fits import line
from torture._children import Child
from torture._digest import checkpoints_of, digest
from torture._look import litter

EVERY = 2  # updates; the fit has 4 for each of its 2 epochs, and so saves at 0, 2, 4, 6 and 8

# The rest of `_disk.OPERATIONS` opens, reads, lists and closes: a kill there leaves the same disk.
CHANGES = ("make_folder", "rename", "unlink", "remove_folder", "create", "write", "sync")


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))


def fit(folder, background):
    x, y = line(64)
    learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=optim.SGD(momentum=0.9), lr=0.05, seed=0)
    checkpoint = stoker.Checkpoint(every=EVERY, keep_last=1, background=background)
    return learner.fit(
        (x, y), valid=(x, y), epochs=2, batch_size=16, run=folder, resume=True, checkpoint=checkpoint, show=False
    )


class Counted:
    """Counts the changes to the disk, and dies in the n-th of them: in a write after a half, else just before."""

    def __init__(self, die_at=0):
        self.done, self.die_at = [], die_at
        for name in CHANGES:
            setattr(_disk, name, self._counting(name, getattr(_disk, name)))

    def _counting(self, name, function):
        def counted(*given):
            self.done.append((name, given[0]))
            if len(self.done) == self.die_at:
                if name == "write":
                    function(given[0], given[1][: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            # What the operating system has, a kill can't take: waiting for the disk would only make this slow.
            return None if name == "sync" else function(*given)

        return counted


def whole(folder, background):
    """The digest, and the numbers of the first change of the second save and of the last one of the third."""
    counted = Counted()
    end = digest(fit(folder, background), folder)
    begins = [at for at, (name, what) in enumerate(counted.done, 1) if name == "make_folder" and ".part-" in str(what)]
    return f"{end} {begins[1]} {begins[3] - 1}"


def killed(folder, background, at):
    Counted(die_at=at)
    fit(folder, background)
    return "it was not killed"


def resumed(folder, background):
    """What the kill has left, the newest and all of it whole; and what came out of going on from there."""
    store = checkpoints_of(folder)
    for saved in store.saved():
        store.read(saved)
    newest = store.newest().saved.update
    Counted()
    return f"{newest} {digest(fit(folder, background), folder)} {litter(folder)}"


def forked(function, *given):
    """The exit status of a fork that calls a function, and what that gives."""
    mine, its = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = function(*given)
        except BaseException:
            text = traceback.format_exc()
        os.write(its, text.encode())
        os._exit(0)
    os.close(its)
    with os.fdopen(mine) as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def at_each(folder, background):
    """Prints a line for each kill: the newest checkpoint that it left, and what came out in the end."""
    torch.set_num_threads(1)
    _, text = forked(whole, folder / "whole", background)
    end, first, last = text.split()
    for at in range(int(first), int(last) + 1):
        code, text = forked(killed, folder / str(at), background, at)
        assert code == -signal.SIGKILL, text
        _, text = forked(resumed, folder / str(at), background)
        print(text.replace(end, "the same bits"))
        shutil.rmtree(folder / str(at))


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_a_kill_at_any_of_them_costs_nothing(tmp_path, background):
    child = Child(at_each, tmp_path, background, prints=tmp_path / "printed.txt")
    assert child.wait() == 0, child.printed()
    ends = [line for line, _ in itertools.groupby(child.printed().splitlines())]
    # The newest is that of the save before, until this one is whole, and never anything else.
    assert ends == ["0 the same bits []", "2 the same bits []", "4 the same bits []"]
