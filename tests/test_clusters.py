"""The files for clusters: the shell scripts parse, the YAML fits the schemas, and torchrun knows its flags.

tests/distributed/test_ray.py and test_slurm.py run them.
"""

import os
import re
import subprocess
import sys

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "distributed"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
PAGES = [ROOT / "docs" / "clusters.md", ROOT / "docs" / "distributed.md"]


def shell_blocks(page):
    return re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)


def kubernetes():
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return service, job, job["spec"]["template"]["spec"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_job_script_parses_and_its_options_come_before_the_first_command(script):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    lines = script.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1]), "Slurm reads options up to the first command"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_shell_lines_of_a_page_parse(page):
    blocks = shell_blocks(page)
    assert blocks
    for block in blocks:
        assert subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True).returncode == 0, block


def test_torchrun_knows_every_flag():
    known = set(re.findall(r"--[a-z-]+", get_args_parser().format_help()))
    texts = [path.read_text() for path in SCRIPTS] + [block for page in PAGES for block in shell_blocks(page)]
    commands = [*(text.replace("\\\n", " ") for text in texts), kubernetes()[2]["containers"][0]["command"][2]]
    calls = re.findall(r"\btorchrun\s+(--.*?)train\.py", "\n".join(commands))
    assert len(calls) >= 6
    flags = {flag for call in calls for flag in re.findall(r"(--[a-z-]+)", call)}
    assert "--rdzv-endpoint" in flags and flags <= known, flags - known


def test_the_pods_meet_at_the_service():
    service, job, pod = kubernetes()
    name, container = job["metadata"]["name"], pod["containers"][0]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    command = container["command"][2]
    assert f"--rdzv-endpoint={name}-0.{pod['subdomain']}:" in command
    nodes = int(re.search(r"--nnodes=(\d+)", command)[1])
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == nodes
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']} " in command
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("version", ["1.31", "latest"])  # podFailurePolicy is stable since 1.31
def test_the_manifest_fits_the_schemas_of_kubernetes(version):
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    version = validator.latest_version() if version == "latest" else version
    service, job, pod = kubernetes()
    for resource in (service, job):
        validator.validate(resource, version, strict=True)
    pod["containers"][0]["resource"] = pod["containers"][0].pop("resources")
    with pytest.raises(validator.ValidationError, match="'resource' was unexpected"):
        validator.validate(job, version, strict=True)


@pytest.mark.soak
def test_the_program_stops_before_the_deadline_and_a_second_start_finishes(tmp_path):
    def start(**environment):
        command = [sys.executable, str(FOLDER / "train.py")]
        environment = {**os.environ, "RUN": "runs/digits", **environment}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    unfinished = tmp_path / "runs" / "digits.more"
    assert "Stopped before the deadline" in start(SLURM_JOB_END_TIME="1") and unfinished.exists()
    assert "Completed 3 epochs: accuracy" in start() and not unfinished.exists()
