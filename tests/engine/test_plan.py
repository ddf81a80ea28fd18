"""How a fit's batches go through the stations: chosen before it starts, with the reasons."""

import pytest
import torch
from torch import nn

from stoker import callbacks, optim
from tests.engine.fits import learner, line, linear, samples


def plan(**settings):
    given = settings.pop("callbacks", [])
    return linear(device="cpu", **settings).fit(line(), epochs=1, callbacks=given, show=False)._prepared.fit.plan


def test_a_cpu_is_eager_and_says_no_reason():
    found = plan()
    assert found.mode == "eager" and found.lines() == ["step       eager, one operation after the other"]


@pytest.mark.parametrize("name", ["pred", "loss", "backward", "step"])
def test_whoever_comes_between_forward_and_step_is_named(name):
    between = callbacks.on(**{f"train_batch_after_{name}": lambda ctx: None})
    assert plan(compile=True, callbacks=[between]).reason.endswith(
        f".on_train_batch_after_{name} comes between forward and step"
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"optimizer": optim.wrap(torch.optim.SGD)}, "is an optimizer of its own, which steps as it likes"),
        ({"precision": "fp16"}, "precision='fp16' looks at every update to find its scale; bf16 needs none"),
        ({"on_nan": "skip"}, "on_nan='skip' looks at every batch before it goes on"),
    ],
    ids=["wrapped", "fp16", "skip"],
)
def test_settings_that_need_every_batch_looked_at(settings, why):
    assert why in plan(compile=True, **settings).reason


def test_a_hook_of_the_users_own_is_called_and_one_of_torch_is_traced(monkeypatch):
    seen, model = [], nn.Linear(3, 1)
    model.register_forward_hook(lambda *given: seen.append(1))
    found = linear(model=model, device="cpu", compile=True).fit(line(), epochs=2, batch_size=16, show=False)
    assert found._prepared.fit.plan.reason == "a hook of Linear may do anything, and a program would not call it"
    assert len(seen) == 8


def test_a_refusal_of_what_was_asked_for_is_a_warning():
    fitted = learner(compile=True, on_nan="skip", device="cpu").fit(samples(), epochs=1, show=False)
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("the training step runs eager, not compiled as asked for: on_nan='skip'")
    quiet = learner(on_nan="skip", device="cpu").fit(samples(), epochs=1, show=False)
    assert not quiet.record.events_of("warning")


def test_a_fit_leaves_no_program_and_its_own_loaders():
    fitted = linear(device="cpu").fit(line(), epochs=1, show=False)
    assert fitted._prepared.fit.program is None and not fitted._prepared.fit.picks


def test_explain_says_the_step():
    assert "step       eager, one operation after the other" in str(linear(device="cpu").explain(line(), epochs=1))
    text = str(linear(device="cpu", compile=True).explain(line(), epochs=1))
    assert "step       compiled: forward, backward, update and metrics are one program" in text
