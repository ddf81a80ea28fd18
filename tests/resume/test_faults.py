"""The disk fails under a fit: the next step says so, a checkpoint is whole, and the next start goes on exactly."""

import errno
import os
import resource
import subprocess
import threading
import time

import pytest
import torch

import stoker
from stoker import callbacks
from stoker.checkpoint import _disk
from stoker.engine import Checkpointer
from stoker.errors import CheckpointFailed
from stoker.record import Record, Run
from tests.learner.fits import same
from tests.resume.scripts import Net, fit
from torture.processes import Child, preload
from torture.runs import checkpoints_of, digest

preload("tests.resume.scripts")
FAULTS = {
    "full": (errno.ENOSPC, "Free some space there"),
    "quota": (errno.EDQUOT, "Free some space there"),
    "EIO": (errno.EIO, "Fix that first"),
    "read-only": (errno.EROFS, "Make it writable"),
    "no permission": (errno.EACCES, "Make it writable"),
    "another file system": (errno.EXDEV, "Fix that first"),
}


def saving(run, **settings):
    """12 updates, saved every 3; `background` is what most tests are about."""
    background = settings.pop("background", True)
    checkpoint = stoker.Checkpoint(every=3, keep_last=1, background=background)
    return fit(run, checkpoint=checkpoint, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    return digest(saving(run), run)


class Failing:
    """Lets an operation on the disk fail, from the save at an update on, after a few that go well."""

    def __init__(self, monkeypatch, operation, code, *, update=6, after=0):
        self.failures, self._left, self._begun = 0, after, False
        self._operation, self._code, self._part = operation, code, f".part-{update:08d}-"
        for name in {"make_folder", operation}:
            monkeypatch.setattr(_disk, name, self._over(name, getattr(_disk, name)))

    def _over(self, name, real):
        def instead(*given):
            self._begun = self._begun or str(given[0]).startswith(self._part)
            if self._begun and name == self._operation:
                self._left -= 1
                if self._left < 0:
                    self.failures += 1
                    raise OSError(self._code, os.strerror(self._code))
            return real(*given)

        return instead


def is_intact(run, update):
    """Whether one checkpoint is there, whole, of this update, and nothing else."""
    store = checkpoints_of(run)
    found = store.newest()
    assert os.listdir(store.folder) == [found.saved.name], "litter"
    return found.problems == [] and found.saved.update == update


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
@pytest.mark.parametrize(("code", "advice"), FAULTS.values(), ids=FAULTS)
def test_a_failed_save_stops_the_training_and_the_next_start_goes_on(
    tmp_path, monkeypatch, whole, code, advice, background
):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        failing = Failing(broken, "rename" if code == errno.EXDEV else "write", code)
        with pytest.raises(CheckpointFailed) as raised:
            saving(run, background=background)
    text, kind = str(raised.value), type(OSError(code, "")).__name__
    assert text.startswith(f"the checkpoint at update 6 could not be written to {run / 'checkpoints'}: {kind}: ")
    assert os.strerror(code) in text
    assert text.endswith(f"{advice}, then resume the run: 00000003 is complete")
    assert isinstance(raised.value, OSError) and isinstance(raised.value, stoker.StokerError)
    assert raised.value.__cause__.errno == code
    assert failing.failures == 1  # it is not tried again and again
    assert is_intact(run, 3)
    assert Record.open(run).events_of("error")[-1].text.startswith("CheckpointFailed: the checkpoint at update 6")
    assert digest(saving(run, background=background), run) == whole


OPERATIONS = ["make_folder", "open_folder", "names", "create", "write", "sync", "rename", "open_file", "read", "close"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("after", [0, 1])
def test_whatever_fails_there_is_a_whole_checkpoint_to_go_on_from(tmp_path, monkeypatch, whole, operation, after):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        Failing(broken, operation, errno.EIO, after=after)
        with pytest.raises(CheckpointFailed):
            saving(run)
    found = checkpoints_of(run).newest()
    assert found.problems == []
    assert found.saved.update in (3, 6)
    assert digest(saving(run), run) == whole
    assert len(os.listdir(run / "checkpoints")) == 1


@pytest.mark.parametrize("operation", ["rename", "unlink", "remove_folder"])
def test_an_old_checkpoint_that_cannot_be_deleted_is_told(tmp_path, monkeypatch, whole, operation):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        # The rename that puts the new one in its place goes well, and the one that takes the old one away does not.
        Failing(broken, operation, errno.EIO, after=1 if operation == "rename" else 0)
        with pytest.raises(
            CheckpointFailed, match="the old checkpoint 00000003 could not be deleted.*00000006 is complete"
        ):
            saving(run)
    assert checkpoints_of(run).newest().saved.update == 6
    assert digest(saving(run), run) == whole
    assert len(os.listdir(run / "checkpoints")) == 1


def test_it_surfaces_at_the_next_step_and_not_at_the_end(tmp_path, monkeypatch):
    batches = []

    def wait(ctx):
        _until(lambda: all(thread.name != "stoker-checkpoint" for thread in threading.enumerate()))
        batches.append((ctx.update, ctx.batch_number))

    Failing(monkeypatch, "write", errno.ENOSPC)
    with pytest.raises(CheckpointFailed, match="at update 6"):
        saving(tmp_path / "run", hooks=[callbacks.on(train_batch_begin=wait)])
    assert batches[-2:] == [(5, 4), (6, 5)]


def _until(done):
    while not done():
        time.sleep(0.001)


def test_the_model_keeps_the_best_weights(tmp_path, monkeypatch):
    made, best = [], []

    def model():
        made.append(Net())
        return made[0]

    def keep(ctx):
        if ctx.best is not None and ctx.best.update == ctx.update:
            best[:] = [{name: value.clone() for name, value in ctx.model.state_dict().items()}]

    Failing(monkeypatch, "write", errno.ENOSPC, update=9)
    with pytest.raises(CheckpointFailed, match="at update 9"):
        saving(tmp_path / "run", model=model, hooks=[callbacks.on(validation=keep)])
    assert same(made[0], best[0])


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
def test_where_the_very_last_save_fails_the_fit_is_given_back_with_a_warning(tmp_path, monkeypatch, whole, background):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        # The first one at this update is that of the epoch's end, the second that of the fit's.
        Failing(broken, "make_folder", errno.ENOSPC, update=12, after=1)
        fitted = saving(run, background=background)
    assert (fitted.updates, fitted.stopped) == (12, "Completed 3 epochs")
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("the checkpoint at update 12 could not be written")
    assert "Free some space there, then resume the run: 00000012 is complete" in warning.text
    assert warning.text in (run / "log.txt").read_text()
    assert is_intact(run, 12)
    assert digest(saving(run, background=background), run) == whole


def test_where_the_last_but_one_fails_it_is_an_error(tmp_path, monkeypatch, whole):
    """It is told when the epoch ends, before the fit does."""
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        Failing(broken, "write", errno.ENOSPC, update=12)
        with pytest.raises(CheckpointFailed, match="at update 12"):
            saving(run, background=False)
    assert is_intact(run, 9)
    assert digest(saving(run), run) == whole


def test_a_failure_while_the_training_ends_is_told_as_well(tmp_path, monkeypatch):
    """The thread is still busy with a checkpoint when the training is over."""
    run, ends = tmp_path / "run", []
    real = _disk.write

    def write(file, given):
        if list((run / "checkpoints").glob(".part-00000012-*")) and not ends[1:]:
            _until(lambda: ends)
            ends.append("failed")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, given)

    monkeypatch.setattr(_disk, "write", write)
    end = Checkpointer.end
    monkeypatch.setattr(Checkpointer, "end", lambda self: ends.append("ended") or end(self))
    fitted = saving(run)
    assert (fitted.updates, ends) == (12, ["ended", "failed"])
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("the checkpoint at update 12 could not be written")


# --- real ones


def full(run):
    """After four updates the disk is full: where it is a small one of its own, else as far as this process goes."""
    torch.set_num_threads(1)

    def fill(ctx):
        if ctx.update != 4:
            return
        _until(lambda: [each.name for each in (run / "checkpoints").glob("*")] == ["00000003"])
        if os.path.ismount(run.parent):
            left = os.statvfs(run.parent)
            (run.parent / "other").write_bytes(b"x" * (left.f_bavail * left.f_frsize - 16384))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))

    try:
        saving(run, hooks=[callbacks.on(update=fill)])
    except CheckpointFailed as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(error)


def ends_well(run, prints, whole):
    child = Child(full, run, prints=prints)
    assert child.wait() == 0, child.printed()
    assert child.printed().startswith("the checkpoint at update 6 could not be written")
    assert child.printed().endswith("then resume the run: 00000003 is complete\n")
    assert is_intact(run, 3)
    (run.parent / "other").unlink(missing_ok=True)
    assert digest(saving(run), run) == whole
    return child.printed()


def test_a_file_that_may_not_grow_any_more(tmp_path, whole):
    assert "OSError: [Errno 27] File too large" in ends_well(tmp_path / "run", tmp_path / "printed.txt", whole)


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte, where it may be mounted; else a folder, and a limit for the process."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(disk, tmp_path, whole):
    """Somebody else fills it while the run goes on; when there is room again, the same script goes on."""
    printed = ends_well(disk / "run", tmp_path / "printed.txt", whole)
    assert "No space left on device. Free some space there" in printed or not os.path.ismount(disk)


def test_a_folder_that_is_a_file(tmp_path):
    run = tmp_path / "run"

    def spoil(ctx):
        if ctx.update == 2:
            (run / "checkpoints").rename(run / "elsewhere")
            (run / "checkpoints").write_text("not a folder")

    with pytest.raises(CheckpointFailed, match=r"at update 3 .*Not a directory.*resume the run: 00000000 is complete"):
        saving(run, hooks=[callbacks.on(update=spoil)])
    (run / "checkpoints").unlink()
    assert Run.open(run).summary()["state"] == "died"
