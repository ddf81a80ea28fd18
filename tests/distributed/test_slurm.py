"""The Slurm scripts of examples/distributed on a cluster of this machine: a job that is signalled continues its run."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.record import History, Run
from tests.conftest import ROOT

TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey")
MISSING = [name for name in TOOLS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root"),
]

RECIPES = ROOT / "examples" / "distributed"
SCRIPTS = ("slurm.sbatch", "slurm_without_torchrun.sbatch")
# Names of nodes that are addresses need no entry in a list of hosts. A job that is queued again starts when its
# credentials have expired: after 5 seconds here instead of two minutes.
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.2 Port={ports[1]} CPUs=64 Gres=gpu:4
NodeName=127.0.0.3 NodeHostname={host} NodeAddr=127.0.0.3 Port={ports[2]} CPUs=64 Gres=gpu:4
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes with four GPUs each, which are empty files. Returns a function that runs a command of Slurm."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    ports, host = free_ports(3), socket.gethostname()
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=ports))
    (folder / "gres.conf").write_text(f"NodeName=127.0.0.[2-3] Name=gpu File={folder}/gpu[0-3]\n")
    for name in ("gpu0", "gpu1", "gpu2", "gpu3"):
        (folder / name).touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    environment = {**os.environ, "PATH": path, "SLURM_CONF": f"{folder}/slurm.conf", "GLOO_SOCKET_IFNAME": "lo"}
    started = []

    def start(*command):
        with (folder / f"{command[0]}-{len(started)}.log").open("w") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))

    def call(*command, folder=folder):
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def is_ready():
        assert all(each.poll() is None for each in started), [path.read_text() for path in folder.glob("*.log")]
        nodes = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=environment, capture_output=True, text=True)
        return nodes.stdout.strip() == "idle 2"

    call("mungekey", "--create", f"--keyfile={folder}/key")
    files = [f"--{name}-file={folder}/munge-{name}" for name in ("pid", "log", "seed")]
    try:
        start("munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/socket", *files)
        wait_until((folder / "socket").exists)
        start("slurmctld", "-D")
        for node in ("127.0.0.2", "127.0.0.3"):
            start("slurmd", "-D", "-N", node)
        wait_until(is_ready)
        yield call
        call("scancel", "--full", "--state=RUNNING")
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            process.kill()


def free_ports(count):
    opened = [socket.socket() for _ in range(count)]
    for each in opened:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports


def wait_until(condition):
    while not condition():
        time.sleep(0.1)


@pytest.mark.parametrize("script", SCRIPTS)
def test_slurm_accepts_every_option_of_a_script(cluster, script):
    assert re.search("Job .* to start at .* on nodes", cluster("sbatch", "--test-only", str(RECIPES / script)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_that_is_terminated_saves_queues_itself_again_and_resumes(cluster, tmp_path, script):
    shutil.copy(RECIPES / script, tmp_path)
    shutil.copy(RECIPES / "train.py", tmp_path / "recipe.py")
    (tmp_path / "train.py").write_text(TRAIN_AND_WAIT)
    (tmp_path / script).write_text((tmp_path / script).read_text().replace("29400", str(free_ports(1)[0])))
    small = ["--gpus-per-node=1", "--ntasks-per-node=1", "--cpus-per-task=1"]  # one process on each of the two nodes
    job = cluster("sbatch", "--parsable", *small, script, folder=tmp_path).strip()

    def field(name):
        return re.search(rf"{name}=(\S+)", cluster("scontrol", "show", "job", job))[1]

    def log():
        return "\n".join(path.read_text() for path in tmp_path.glob("*.log"))

    def is_waiting():
        assert field("JobState") in ("PENDING", "CONFIGURING", "RUNNING"), log()
        return all((tmp_path / f"waiting-{rank}").exists() for rank in range(2))

    wait_until(is_waiting)
    cluster("scancel", "--signal=TERM", job)  # as --signal does before the time limit
    wait_until(lambda: field("Restarts") == "1" or field("JobState") not in ("RUNNING", "COMPLETING"))
    assert field("Restarts") == "1", log()
    wait_until(lambda: field("JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"))
    assert field("JobState") == "COMPLETED", log()

    run = tmp_path / "runs" / "digits"
    record = Run.open(run).record
    assert [(event.epoch, event.update) for event in record.events_of("resume")] == [(2, 21)], log()
    assert len(History(record)["valid/loss"]) == 3 and not run.with_name("digits.more").exists()
    assert "Completed 3 epochs: accuracy 0.8" in log()


TRAIN_AND_WAIT = """
import os, signal, time
from pathlib import Path

import recipe
import stoker
from stoker import callbacks


def wait_for_signal(ctx):
    if ctx.update != 20 or "SLURM_RESTART_COUNT" in os.environ:
        return
    arrived, handler = [], signal.getsignal(signal.SIGTERM)

    def receive(number, frame):
        arrived.append(number)
        handler(number, frame)

    signal.signal(signal.SIGTERM, receive)
    Path(f"waiting-{stoker.world().rank}").touch()
    while not arrived:
        time.sleep(0.05)


fit, hook = stoker.Learner.fit, callbacks.on(train_batch_end=wait_for_signal)
stoker.Learner.fit = lambda *arguments, **settings: fit(*arguments, callbacks=[hook], **settings)
recipe.main(Path(os.environ["RUN"]))
"""
