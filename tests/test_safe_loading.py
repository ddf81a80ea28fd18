"""Loading runs no code: a run is saved, resumed and loaded while everything that unpickles raises."""

import os
import subprocess
import sys
from pathlib import Path

import stoker

PROGRAM = """
import _pickle, marshal, pickle, shelve, sys
import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics

run, how = sys.argv[1:]


def trap(name, usual=None):
    def raising(*arguments, **settings):
        if usual is not None and sys._getframe(1).f_globals["__name__"].startswith("importlib."):
            return usual(*arguments)  # Python's own bytecode files
        raise RuntimeError(f"{name} was called")

    return raising


for module in (pickle, _pickle):
    for name in ("load", "loads", "Unpickler"):
        setattr(module, name, trap(f"{module.__name__}.{name}"))
for name in ("load", "loads"):
    setattr(marshal, name, trap(f"marshal.{name}", usual=getattr(marshal, name)))
pickle._Unpickler = shelve.open = trap("an unpickler")
torch.load = torch.serialization.load = trap("torch.load")

for module in (pickle, marshal):  # a negative control
    try:
        module.loads(module.dumps(1))
    except RuntimeError as error:
        print(error)


def make():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 4))


torch.manual_seed(0)
model = make()
x, y = torch.randn(96, 6), torch.randint(0, 4, (96,))
learner = stoker.Learner(
    model, loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy()], accumulate=2, ema=0.9, precision="bf16", seed=1
)


def fail(ctx):
    if how == "fail" and (ctx.epoch, ctx.batch_number) == (2, 4):
        raise SystemExit(3)


for _ in range(2):  # resumed, and then returned unchanged
    fitted = learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=3, transform=lambda x, y: (x + 0.1 * torch.randn(6), y)),
        valid=(x[:32], y[:32]),
        epochs=3,
        run=run,
        config={"lr": 1e-3},
        resume=True,
        checkpoint=stoker.Checkpoint(every=2, keep_best="valid/loss"),
        callbacks=[callbacks.EarlyStopping(patience=9), callbacks.on(train_batch_begin=fail)],
        show=False,
    )
    loaded = stoker.Fitted.load(run, learner)
    ready = stoker.load_for_inference(run, make())
    assert all(torch.equal(a, b) for a, b in zip(ready.state_dict().values(), fitted.model.state_dict().values()))
    assert loaded.history["valid/loss"] == fitted.history["valid/loss"]
    stoker.load(model, stoker.save(model, run + "/model"))
    print(fitted.stopped, len(fitted.record.events_of("resume")))
"""


TRAPPED = "pickle.loads was called\nmarshal.loads was called\n"


def run(folder, how):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(stoker.__file__).parent.parent)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), how]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_whole_run_is_saved_resumed_and_loaded_without_unpickling(tmp_path):
    first = run(tmp_path / "run", "fail")
    assert first.returncode == 3, first.stderr
    again = run(tmp_path / "run", "whole")
    assert again.returncode == 0, again.stderr
    assert again.stdout == TRAPPED + 2 * "Completed 3 epochs 1\n"
    kinds = {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert kinds == {".json", ".jsonl", ".txt", ".safetensors"}, "there are other files"
