"""Whatever happens to a viewer, or to the files between it and a training, the training gives the same bits."""

import re
import shutil
import signal
import subprocess
import sys

import httpx
import pytest

from stoker.record import Follower
from tests.cli.terminals import StokerTerminal

# Trains six epochs, waits for a line on stdin after each, and prints the exact result.
TRAINING = """
import sys, time, torch, stoker
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
learner = stoker.Learner(model, loss=nn.MSELoss(), lr=1e-2, seed=0)

def wait(ctx):
    print("epoch", ctx.epoch, flush=True)
    sys.stdin.readline()

callbacks = [
    stoker.callbacks.on(epoch_end=wait),
    stoker.callbacks.on(train_batch_end=lambda ctx: time.sleep(0.06)),  # requests are looked for four times a second
]
fitted = learner.fit(
    (x, x.sum(1, keepdim=True)), valid=0.25, epochs=6, batch_size=8, run=sys.argv[1],
    callbacks=callbacks, checkpoint=False if "unsaved" in sys.argv else None, show=False,
)
weights = [each.flatten().tolist() for each in fitted.model.state_dict().values()]
print(weights, fitted.history["train/loss"], fitted.history["valid/loss"], fitted.stopped, flush=True)
"""
UI = "import sys; sys.modules['torch'] = None; from stoker.cli import main; sys.exit(main())"


class Training(subprocess.Popen):
    """A training process that waits after each epoch."""

    def __init__(self, path, *options):
        pipe = subprocess.PIPE
        super().__init__([sys.executable, "-c", TRAINING, str(path), *options], stdin=pipe, stdout=pipe, text=True)

    def __enter__(self):
        self.wait_for_epoch(1)
        return super().__enter__()

    def __exit__(self, *error):
        self.kill()
        super().__exit__(*error)

    def wait_for_epoch(self, epoch):
        assert self.stdout.readline() == f"epoch {epoch}\n"

    def train_epoch(self, epoch):
        self.stdin.write("\n")
        self.stdin.flush()
        self.wait_for_epoch(epoch)

    def finish(self):
        """Trains to the end and returns the result."""
        self.stdin.write("\n" * 6)
        self.stdin.close()
        output = self.stdout.read()
        assert self.wait() == 0
        return output.splitlines()[-1]


def watch(path):
    return StokerTerminal(["watch", str(path)], columns=110, lines=40)


@pytest.fixture
def ui(tmp_path):
    """`stoker ui` on the directory of the run, and a client."""
    command = [sys.executable, "-c", UI, "ui", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = re.search(r":(\d+)/", [server.stdout.readline() for _ in range(2)][1])[1]
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=60, trust_env=False) as client:
                yield server, client
        finally:
            server.kill()


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory):
    """The result of the training without viewers."""
    with Training(tmp_path_factory.mktemp("alone") / "run") as training:
        return training.finish()


@pytest.mark.soak
def test_killed_and_stuck_viewers_and_a_damaged_record(tmp_path, unwatched, ui):
    path, (server, client) = tmp_path / "run", ui
    with Training(path) as training:
        with watch(path) as killed:
            killed.wait_for("epoch 1/6")
            killed.process.send_signal(signal.SIGKILL)
            training.train_epoch(2)
        with watch(path) as stuck, client.stream("GET", "api/events?id=run") as unread:
            stuck.wait_for("epoch 2/6")
            stuck.process.send_signal(signal.SIGSTOP)  # from now on neither of the two is read
            assert unread.status_code == 200
            training.train_epoch(3)
            with (path / "events.jsonl").open("ab") as file:
                file.write(b'\xff\x00 {"kind": "valid"\n')
            training.train_epoch(4)
            with watch(path) as terminal:
                terminal.wait_for("a damaged line was skipped")
                found = client.get("api/run/run").json()
                assert found["problem"] == "a damaged line was skipped" and found["row"]["epoch"] == 4
                server.send_signal(signal.SIGKILL)
                training.train_epoch(5)
                terminal.wait_for("epoch 5/6")
        assert training.finish() == unwatched
    follower = Follower(path)
    follower.refresh()
    assert (follower.state, follower.damaged_lines) == ("finished", 1)


@pytest.mark.soak
def test_a_run_that_is_deleted_while_it_is_watched(tmp_path, unwatched, ui):
    """A run that saves checkpoints has to stop then; this one saves none."""
    path, (_, client) = tmp_path / "run", ui
    with Training(path, "unsaved") as training, watch(path) as terminal:
        terminal.wait_for("epoch 1/6")
        assert client.get("api/run/run").json()["row"]["state"] == "running"
        shutil.rmtree(path)
        terminal.wait_for("the run's directory does not exist any more")
        answer = client.get("api/run/run")
        while answer.status_code == 200:  # the server looks through the directory from time to time
            answer = client.get("api/run/run")
        assert answer.status_code == 404 and "there is no run 'run'" in answer.json()["error"]
        training.train_epoch(2)
        assert training.finish() == unwatched
        terminal.press("q")
        assert terminal.until_end()[1] == 0


def test_requests_of_viewers_are_obeyed_and_recorded(tmp_path, ui):
    path, (server, client) = tmp_path / "run", ui
    token = next(line for line in server.stdout if "token" in line).rpartition(": ")[2].strip()
    with Training(path) as training:
        with watch(path) as terminal:
            terminal.wait_for("epoch 1/6")
            terminal.press("c")
            terminal.wait_for("asked")
        training.train_epoch(2)
        answer = client.post("api/control/run", json={"ask": "stop"}, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200
        assert "Stop requested by ui, in epoch 3" in training.finish()
    follower = Follower(path)
    follower.refresh()
    assert (follower.state, follower.status.epoch) == ("stopped", 3)
    assert "Stop requested by ui" in follower.reason
    reasons = [event.extra["reason"] for event in follower.messages if event.kind == "checkpoint"]
    assert any("requested by watch" in reason for reason in reasons)
