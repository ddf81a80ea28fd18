"""Importing stoker is cheap (measured in modules, not in seconds) and changes no global state."""

import json
import subprocess
import sys

import pytest

from tests.test_architecture import PACKAGES, WITHOUT_TORCH

STATES = """
import json, logging, os, random, signal, sys, warnings
import numpy, torch
import torch.multiprocessing

def states():
    return {
        "python's random numbers": str(hash(random.getstate())),
        "numpy's random numbers": str(numpy.random.get_state()[1].tolist()),
        "torch's random numbers": str(torch.get_rng_state().tolist()),
        "default type": str(torch.get_default_dtype()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "grad mode": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32],
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic],
        "precision": torch.get_float32_matmul_precision(),
        "warnings": str(warnings.filters),
        "loggers": sorted(logging.root.manager.loggerDict),
        "handlers": str(logging.root.handlers),
        "signals": str([signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]),
        "environment": dict(os.environ),
        "path": sys.path,
        "hooks": str([sys.excepthook, sys.displayhook]),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "pytrees": len(torch.utils._pytree.SUPPORTED_NODES),
    }
"""


def in_a_fresh_process(program):
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


EVERYTHING = "import stoker\nfor name in stoker.__all__: getattr(stoker, name)\n"


def test_importing_everything_changes_no_global_state_and_loads_few_modules():
    """Limits the number of modules, and names the heavy ones: 100 ms are about 200 modules of ordinary size."""
    before, after, new = in_a_fresh_process(
        f"{STATES}before, loaded = states(), set(sys.modules)\n{EVERYTHING}"
        "print(json.dumps([before, states(), sorted(set(sys.modules) - loaded)]))"
    )
    for name in before:
        assert before[name] == after[name], name
    others = [name for name in new if name.split(".")[0] != "stoker"]
    assert len(others) <= 40, others
    heavy = {"rich", "matplotlib", "pandas", "polars", "pyarrow", "datasets", "tyro", "scipy", "sklearn", "msgpack"}
    heavy |= {"textual", "starlette", "uvicorn", "msgspec", "tensorboard", "mlflow", "wandb", "trackio"}
    assert not heavy & {name.split(".")[0] for name in new}
    slow = {
        "numpy.typing",
        "torch._dynamo",
        "torch._inductor",
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.onnx",
    }
    assert not slow & set(new)


def test_import_stoker_alone_loads_only_the_errors():
    new = in_a_fresh_process(
        "import json, sys\nbefore = set(sys.modules)\nimport stoker\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert {name for name in new if name.split(".")[0] == "stoker"} == {"stoker", "stoker._lazy", "stoker.errors"}
    assert "torch" not in new and "numpy" not in new and len(new) < 30, new


@pytest.mark.parametrize("name", [*WITHOUT_TORCH, "cli"])
def test_a_package_without_torch_can_be_the_first_to_be_imported_and_loads_no_torch(name):
    loaded = in_a_fresh_process(f"import json, sys, stoker.{name}\nprint(json.dumps(sorted(sys.modules)))")
    assert "torch" not in loaded


FORKS = """
import json, os, sys, torch

def fails(name):
    child = os.fork()
    if not child:
        __import__(f"stoker.{name}")
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0

print(json.dumps([name for name in sys.argv[1:] if fails(name)]))
"""


@pytest.mark.soak  # tests/test_architecture.py finds cycles of packages without importing them
def test_any_other_package_can_be_the_first_to_be_imported():
    """Imports torch once, and forks a process for each package, so that no other package is loaded."""
    packages = [name for name in PACKAGES if name not in (*WITHOUT_TORCH, "cli")]
    done = subprocess.run([sys.executable, "-c", FORKS, *packages], capture_output=True, text=True)
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, "", [])


def test_a_plain_fit_loads_neither_viewers_nor_trackers_nor_what_saves_a_run():
    """Those are a third of the modules. What is imported is loaded for the first `Learner` or the first `fit`."""
    imported, trained = in_a_fresh_process(
        "import json, sys, torch\nbefore = set(sys.modules)\n"
        "from stoker import Learner\nimported = set(sys.modules) - before\n"
        "rows = torch.randn(8, 3), torch.randn(8, 1)\n"
        "learner = Learner(torch.nn.Linear(3, 1), loss=torch.nn.MSELoss(), seed=0, device='cpu')\n"
        "learner.fit(rows, valid=rows, epochs=1, show=False)\n"
        "print(json.dumps([sorted(imported), sorted(set(sys.modules) - before)]))"
    )
    assert {name for name in imported if name.split(".")[0] != "stoker"} == set()
    unused = ("weights", "view", "checkpoint._store", "checkpoint._saver", "callbacks._tracker", "record._follow")
    assert [name for name in trained if name.startswith(tuple(f"stoker.{each}" for each in unused))] == []


def test_the_first_use_collects_no_garbage_and_training_loads_no_compiler():
    """
    A collection visits all objects of torch, which takes as long as the import of stoker. torch's own optimizers import
    torch._dynamo when they are created, which takes about a second. Steps and losses of the user's own are watched in
    their first batch, without torch's compiler.
    """
    collections, is_enabled, loaded = in_a_fresh_process(
        "import gc, json, sys, torch, stoker\n"
        "before = gc.get_stats()[2]['collections']\n"
        "stoker.Learner\n"
        "collections = gc.get_stats()[2]['collections'] - before\n"
        "from stoker import data, optim\n"
        "from torch.nn.functional import cross_entropy\n"
        "model = torch.nn.Linear(3, 1)\noptimizer = optim.AdamW().init(model)\n"
        "for (x,) in data.Loader((torch.randn(8, 3),), batch_size=4, shuffle=0):\n"
        "    optimizer.step(stoker.backward(model(x).sum(), model), lr=1e-3)\n"
        "rows = torch.randn(8, 3), torch.randint(2, (8,))\n"
        "def step(model, batch): return cross_entropy(model(batch[0]), batch[1])\n"
        "def loss(predictions, targets): return cross_entropy(predictions, targets)\n"
        "for settings in ({'step': step, 'valid_step': step}, {'loss': loss}):\n"
        "    learner = stoker.Learner(torch.nn.Linear(3, 2), seed=0, device='cpu', **settings)\n"
        "    learner.fit(rows, valid=rows, epochs=1, show=False)\n"
        "print(json.dumps([collections, gc.isenabled(), sorted(sys.modules)]))"
    )
    assert collections == 0 and is_enabled
    assert "torch._dynamo" not in loaded
