"""How the training step runs is decided before the fit starts, and the reasons are given."""

import pytest
import torch
from torch import nn

from stoker import callbacks, optim
from stoker.engine import Plan
from tests.learner.fits import line, linear


def plan_of(*, callbacks=(), **settings):
    return linear(device="cpu", **settings).fit(line(), epochs=1, callbacks=callbacks, show=False).plan


def test_the_cpu_runs_eagerly_without_a_reason():
    assert "step       eager, one operation after the other" in plan_of()
    assert not any("not compiled" in text for text in plan_of())


@pytest.mark.parametrize("name", ["pred", "loss", "backward", "step"])
def test_a_callback_between_forward_and_step_is_named(name):
    between = callbacks.on(**{f"train_batch_after_{name}": lambda ctx: None})
    lines = plan_of(compile=True, callbacks=[between])
    assert any(text.endswith(f".on_train_batch_after_{name} comes between forward and step") for text in lines)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"optimizer": optim.wrap(torch.optim.SGD)}, "wrap(SGD) wraps an optimizer with its own step"),
        ({"precision": "fp16"}, "precision='fp16' reads every update to find its scale; bf16 needs none"),
        ({"on_nan": "skip"}, "on_nan='skip' reads every batch before it continues"),
    ],
    ids=["wrapped", "fp16", "skip"],
)
def test_settings_that_prevent_compilation_are_named(settings, reason):
    assert any(reason in text for text in plan_of(compile=True, **settings))


def test_a_forward_hook_prevents_compilation_and_is_called():
    calls, model = [], nn.Linear(3, 1)
    model.register_forward_hook(lambda *arguments: calls.append(1))
    fitted = linear(model=model, device="cpu", compile=True).fit(line(), epochs=2, batch_size=16, show=False)
    reason = "a hook of Linear runs Python code, which a CUDA graph or compiled step skips"
    assert any(reason in text for text in fitted.plan)
    assert len(calls) == 8


def test_a_tensor_without_memory_of_its_own_prevents_compilation():
    model = nn.Linear(3, 1)
    model.register_buffer("table", torch.eye(2).to_sparse(), persistent=False)
    lines = linear(model=model, device="cpu", compile=True).fit(line(), epochs=1, show=False).plan
    assert any("'table' is a tensor with the layout torch.sparse_coo" in text for text in lines)


def test_a_warning_says_why_compilation_was_requested_and_refused():
    fitted = linear(compile=True, on_nan="skip", device="cpu").fit(line(), epochs=1, show=False)
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("the training step runs eager, not compiled as requested: on_nan='skip'")
    not_requested = linear(on_nan="skip", device="cpu").fit(line(), epochs=1, show=False)
    assert not not_requested.record.events_of("warning")


def test_explain_describes_the_step():
    assert "step       eager, one operation after the other" in str(linear(device="cpu").explain(line(), epochs=1))
    text = str(linear(device="cpu", compile=True).explain(line(), epochs=1))
    assert "step       compiled: forward, backward, update and metrics are one program" in text


def test_the_lines_give_mode_data_and_notes():
    plan = Plan("captured", data="1.5 kB stay on the device")
    plan.notes.append("graph memory 3.1 MB, one pool for all shapes")
    assert plan.lines() == [
        "step       captured: forward, backward, update and metrics are one CUDA graph of the eager operations",
        "data       1.5 kB stay on the device",
        "           graph memory 3.1 MB, one pool for all shapes",
    ]


def test_the_first_reason_is_kept():
    plan = Plan("compiled", wanted="compiled")
    plan.fall_back("eager", "a callback listens")
    plan.fall_back("eager", "the optimizer is wrapped")
    assert plan.lines() == [
        "step       eager, one operation after the other",
        "           not compiled: a callback listens",
    ]
