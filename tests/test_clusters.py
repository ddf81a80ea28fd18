"""The files for clusters: shells can read them, YAML says what the page says, and torchrun knows its flags."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import stoker

ROOT = Path(stoker.__file__).parent.parent
FOLDER = ROOT / "examples" / "distributed"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
PAGES = [ROOT / "docs" / "clusters.md", ROOT / "docs" / "distributed.md"]


def shell_blocks(page):
    return re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)


def pods():
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return service, job, job["spec"]["template"]["spec"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_can_read_it(script):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    head = script.read_text().splitlines()
    last = max(number for number, line in enumerate(head) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in head[: last + 1]), "Slurm stops looking at the first command"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_shell_can_read_the_pages_lines(page):
    blocks = shell_blocks(page)
    assert blocks
    for block in blocks:
        assert subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True).returncode == 0, block


def test_torchrun_knows_every_flag_that_is_given_to_it():
    told = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--help"], capture_output=True, text=True)
    known = set(re.findall(r"--[a-z-]+", told.stdout))
    texts = [path.read_text() for path in SCRIPTS] + [block for page in PAGES for block in shell_blocks(page)]
    commands = [*(text.replace("\\\n", " ") for text in texts), pods()[2]["containers"][0]["command"][2]]
    calls = re.findall(r"\btorchrun\s+(--.*?)train\.py", "\n".join(commands))
    assert len(calls) >= 6
    flags = {flag for call in calls for flag in re.findall(r"(--[a-z-]+)", call)}
    assert "--rdzv-endpoint" in flags and flags <= known, flags - known


def test_pods_meet_where_the_service_says():
    service, job, pod = pods()
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    command = pod["containers"][0]["command"][2]
    assert f"--rdzv-endpoint={name}-0.{pod['subdomain']}:" in command
    nodes = int(re.search(r"--nnodes=(\d+)", command)[1])
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == nodes
    gpus = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={gpus} " in command
    mounted = {each["name"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    given = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    assert int(given["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]


def test_ray_calls_the_same_program_and_imports_nothing_else_of_it():
    tree = ast.parse((FOLDER / "ray_train.py").read_text())
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "train"]
    assert [alias.name for alias in taken[0].names] == ["main"]


def test_links_of_the_pages_lead_somewhere():
    for page in (*PAGES, ROOT / "docs" / "scaling.md"):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), link


def test_the_program_trains_goes_on_and_says_when_there_is_more(tmp_path):
    def start(**more):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "train.py")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RUN": "runs/digits", **more},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    mark = tmp_path / "runs" / "digits.more"
    assert "Stopped before the deadline" in start(SLURM_JOB_END_TIME="1") and mark.exists()
    assert "Completed 3 epochs: accuracy" in start() and not mark.exists()
