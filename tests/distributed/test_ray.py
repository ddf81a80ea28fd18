"""examples/distributed/ray_train.py on a Ray cluster of one node: its scores, and a worker that is killed."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from stoker.record import History, Run
from tests.conftest import ROOT
from tests.distributed.test_torchrun import undisturbed  # noqa: F401  a fixture

IS_MISSING = importlib.util.find_spec("ray") is None  # importing it takes seconds
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(IS_MISSING, reason="Ray is not installed: pip install 'ray[train]'"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the address 127.0.0.2"),
]

RECIPES = ROOT / "examples" / "distributed"


@pytest.fixture(scope="module")
def cluster():
    """The environment of a program that uses a Ray cluster of this machine, which ends with the module."""
    folder = tempfile.mkdtemp(prefix="ray-")  # not in tmp_path: paths of sockets have at most 107 characters
    mark = uuid.uuid4().hex  # recognises the processes of this cluster, whoever their parent is
    local = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "TEST_CLUSTER": mark}
    environment = {**os.environ, **local, "GLOO_SOCKET_IFNAME": "lo"}
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--include-dashboard=false"]
    try:
        resources = ["--num-cpus=2", "--num-gpus=0", "--object-store-memory=100000000"]
        # Ray replaces 127.0.0.1 by an address that other machines reach.
        start([*ray, *resources, "--node-ip-address=127.0.0.2", "--disable-usage-stats"], folder, environment)
        yield {**environment, "RAY_ADDRESS": "auto"}
    finally:
        while alive := processes_with(mark):
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive)
        shutil.rmtree(folder, ignore_errors=True)


def processes_with(mark):
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("TEST_CLUSTER") == mark:
                found.append(process)
    return found


def start(command, folder, environment):
    """Runs a command to its end. What it prints goes to a file: processes that it leaves behind keep it open."""
    printed = Path(folder) / "printed.txt"
    with printed.open("w") as file:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
    assert done.returncode == 0, printed.read_text()


def scores(run):
    history = History(Run.open(run).record)
    return [value for name in ("train/loss", "valid/loss", "valid/accuracy") for value in history[name]]


def test_the_recipe_has_the_scores_of_one_process(cluster, tmp_path):
    for name in ("train.py", "ray_train.py"):
        shutil.copy(RECIPES / name, tmp_path)
    start([sys.executable, "train.py"], tmp_path, {**cluster, "RUN": "runs/alone"})
    start([sys.executable, "ray_train.py"], tmp_path, cluster)
    found = scores(tmp_path / "runs" / "digits")
    assert len(found) == 9 and found == pytest.approx(scores(tmp_path / "runs" / "alone"), rel=1e-4)
    assert (tmp_path / "runs" / "ray" / "digits").is_dir()  # Ray's own files are next to the run


def test_a_killed_worker_is_restarted_and_the_run_ends_in_the_same_bits(cluster, tmp_path, undisturbed):  # noqa: F811
    shutil.copy(RECIPES / "ray_train.py", tmp_path)
    (tmp_path / "train.py").write_text(TRAIN_AND_DIE)
    start([sys.executable, "ray_train.py"], tmp_path, {**cluster, "RUN": "run"})
    assert (tmp_path / "died").exists()
    digests = [(tmp_path / f"digest-{rank}").read_text() for rank in range(2)]
    assert " ".join(["digest", *digests]) == undisturbed
    resumes = Run.open(tmp_path / "run").record.events_of("resume")
    assert [(event.epoch, event.batch) for event in resumes] == [(2, 4)]  # of a checkpoint every third update


TRAIN_AND_DIE = """
import stoker
from tests.distributed.scripts import fit_and_die_once
from torture.runs import digest


def main(run):
    fitted = fit_and_die_once(run.parent)
    run.with_name(f"digest-{stoker.world().rank}").write_text(digest(fitted, run))
"""
