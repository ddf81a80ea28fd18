"""Whatever happens to a viewer, or to the files between it and a run, the run comes to the same bits."""

import os
import re
import shutil
import signal
import subprocess
import sys

import httpx
import pytest

from stoker.record import Follower
from tests.cli.test_watch import Whole

# Trains in six epochs, waits for a word after each, and says in the end what came out, to the bit.
TRAINING = """
import sys, torch, stoker
from stoker.loop import _progress
from torch import nn

_progress._TOLD_EVERY = 0.0  # seconds; these epochs are short
torch.manual_seed(0)
x = torch.randn(64, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
learner = stoker.Learner(model, loss=nn.MSELoss(), lr=1e-2, seed=0)

def wait(ctx):
    print("epoch", ctx.epoch, flush=True)
    sys.stdin.readline()

fitted = learner.fit(
    (x, x.sum(1, keepdim=True)), valid=0.25, epochs=6, batch_size=8, run=sys.argv[1],
    callbacks=[stoker.callbacks.on(epoch_end=wait)], checkpoint=False if "unsaved" in sys.argv else None, show=False,
)
weights = [each.flatten().tolist() for each in fitted.model.state_dict().values()]
print(weights, fitted.history["train/loss"], fitted.history["valid/loss"], fitted.stopped, flush=True)
"""
UI = "import sys; sys.modules['torch'] = None; from stoker.cli import main; sys.exit(main())"


class Training(subprocess.Popen):
    """A training process that goes on to its next epoch when it is told to."""

    def __init__(self, path, *how):
        pipe = subprocess.PIPE
        super().__init__([sys.executable, "-c", TRAINING, str(path), *how], stdin=pipe, stdout=pipe, text=True)

    def __exit__(self, *error):
        self.kill()
        super().__exit__(*error)

    def has_done(self, epoch):
        assert self.stdout.readline() == f"epoch {epoch}\n"

    def go_on(self, epoch):
        """Lets it train to the end of that epoch."""
        self.stdin.write("\n")
        self.stdin.flush()
        self.has_done(epoch)

    def bits(self):
        """What came out, once it is over."""
        self.stdin.write("\n" * 6)
        self.stdin.close()
        said = self.stdout.read()
        assert self.wait() == 0
        return said.splitlines()[-1]


def watching(path):
    """`stoker watch` on a terminal of its own."""
    return Whole(f"\nfrom stoker.cli import main\nsys.exit(main(['watch', {str(path)!r}]))", columns=110, lines=40)


def until(terminal, text):
    while text not in (shown := "\n".join(terminal.screen.display)):
        assert terminal._read(), f"it ended without {text!r}:\n{shown}"


@pytest.fixture
def serving(tmp_path):
    """`stoker ui` on the folder of the run, and a client of it."""
    command = [sys.executable, "-c", UI, "ui", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = re.search(r":(\d+)/", [server.stdout.readline() for _ in range(2)][1])[1]
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=60, trust_env=False) as client:
                yield server, client
        finally:
            server.kill()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the training comes to when nobody looks."""
    with Training(tmp_path_factory.mktemp("alone") / "run") as training:
        training.has_done(1)
        return training.bits()


def test_viewers_that_are_killed_or_stuck_and_a_record_that_is_damaged(tmp_path, alone, serving):
    path, (server, client) = tmp_path / "run", serving
    with Training(path) as training:
        training.has_done(1)
        with watching(path) as killed:
            until(killed, "epoch 1/6")
            killed.process.send_signal(signal.SIGKILL)
            training.go_on(2)
        with watching(path) as stuck, client.stream("GET", "api/events?id=run") as unread:
            until(stuck, "epoch 2/6")
            stuck.process.send_signal(signal.SIGSTOP)  # from here on nobody reads what either of them has to say
            assert unread.status_code == 200
            training.go_on(3)
            with (path / "events.jsonl").open("ab") as file:
                file.write(b'\xff\x00 {"kind": "valid"\n')
            training.go_on(4)
            with watching(path) as terminal:
                until(terminal, "a damaged line was skipped")
                found = client.get("api/run/run").json()
                assert found["problem"] == "a damaged line was skipped" and found["row"]["epoch"] == 4
                server.send_signal(signal.SIGKILL)
                training.go_on(5)
                until(terminal, "epoch 5/6")
        assert training.bits() == alone
    follower = Follower(path)
    follower.refresh()
    assert (follower.state, follower.damaged) == ("finished", 1)


def test_a_run_that_is_deleted_under_its_viewers(tmp_path, alone, serving):
    """One that saves checkpoints has to stop then: it would lose what it promised to keep. This one doesn't."""
    path, (_, client) = tmp_path / "run", serving
    with Training(path, "unsaved") as training:
        training.has_done(1)
        with watching(path) as terminal:
            until(terminal, "epoch 1/6")
            assert client.get("api/run/run").json()["row"]["state"] == "running"
            shutil.rmtree(path)
            until(terminal, "the run's directory is gone")
            answer = client.get("api/run/run")
            while answer.status_code == 200:  # the folder is looked through every now and then
                answer = client.get("api/run/run")
            assert answer.status_code == 404 and "there is no run 'run'" in answer.json()["error"]
            training.go_on(2)
            assert training.bits() == alone
            os.write(terminal.master, b"q")
            assert terminal.until_end()[1] == 0


def test_what_viewers_ask_of_a_run_is_done_and_recorded(tmp_path, serving):
    path, (server, client) = tmp_path / "run", serving
    token = next(line for line in server.stdout if "token" in line).rpartition(": ")[2].strip()
    with Training(path) as training:
        training.has_done(1)
        with watching(path) as terminal:
            until(terminal, "epoch 1/6")
            os.write(terminal.master, b"c")
            until(terminal, "asked")
        training.go_on(2)
        asked = client.post("api/control/run", json={"ask": "stop"}, headers={"authorization": f"Bearer {token}"})
        assert asked.status_code == 200
        assert "Asked to stop by ui, in epoch 3" in training.bits()
    follower = Follower(path)
    follower.refresh()
    assert (follower.state, follower.status.epoch) == ("stopped", 3)
    assert "Asked to stop by ui" in follower.reason
    assert any(
        "asked for by watch" in event.extra["reason"] for event in follower.messages if event.kind == "checkpoint"
    )
