"""Every model of another library trains, resumes, is viewed, evaluated and captured as with plain PyTorch."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import stoker
from stoker import Checkpoint
from tests.hooks import Crash, crash_at
from tests.libraries import (
    recurrent,
    test_diffusers,
    test_peft,
    test_sentence_transformers,
    test_torch_geometric,
    test_torchvision,
    test_transformers,
    timm_models,
)
from tests.libraries.checks import DEVICE, EPOCHS, SEED, assert_same, check_executors, plain, weights

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
CASES = {
    "LSTM": partial(recurrent.case, nn.LSTM),
    "GRU": partial(recurrent.case, nn.GRU),
    "diffusers": test_diffusers.make_case,
    "peft": lambda: test_peft.CASE,
    "sentence transformers": test_sentence_transformers.make_case,
    **{f"timm {name}": partial(timm_models.case, name) for name in timm_models.MODELS},
    **{f"graphs {kind}": partial(test_torch_geometric.case, kind) for kind in ("GCN", "GAT")},
    **{f"torchvision {name}": make for name, make in test_torchvision.CASES.items()},
    **{name: lambda case=case: case for name, case in test_transformers.CASES.items()},
}


def models(*fast, without=()):
    """The models, without those that a test is not for; the long tests have all but the fast ones."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.soak) for name in CASES if name not in without]


@pytest.fixture
def case(name):
    return CASES[name]()


@pytest.mark.parametrize("name", models("LSTM", "BERT", without=["torchvision detection"]))
def test_a_view_computes_what_eval_mode_computes(case):
    """`valid(model)` computes what `model.eval()` computes, and the model stays in training mode."""
    model, compute = case.model().to(DEVICE).train(), case.predict or case.loss
    batch = case.batches(inputs=case.predict is not None)[0]
    view = stoker.valid(model)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(SEED)
        found = compute(view, batch)
        assert model.training and all(module.training for module in model.modules())
        torch.manual_seed(SEED)
        assert_same(found, compute(model.eval(), batch), tolerance=case.tolerance)


@pytest.mark.parametrize("name", models(without=["LSTM", "GRU", "sentence transformers"]))
def test_a_summary_counts_all_parameters_and_explain_describes_the_fit(case):
    model = case.model()
    found = stoker.summary(model, next(iter(case.loader())) if case.example is None else case.example)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert len(found.layers) > 1 and found.flops > 0
    text = case.learner().explain(case.loader(), epochs=EPOCHS)
    assert type(model).__name__ in text


@pytest.mark.parametrize("name", models("LSTM", "BERT"))
def test_a_fit_has_the_weights_of_a_plain_loop(case):
    model = case.model().to(DEVICE)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=case.lr, fused=True)
    model.train()
    torch.manual_seed(SEED)
    for _ in range(EPOCHS):
        for batch in case.batches():
            optimizer.zero_grad()
            case.loss(model, batch).backward()
            optimizer.step()
    fitted = case.fit(case.learner())
    assert_same(weights(fitted.model), weights(model))
    first = weights(case.model())
    assert any(not torch.equal(value, first[name]) for name, value in weights(fitted.model).items()), "nothing trained"


@pytest.mark.parametrize("name", models("BERT"))
def test_a_crashed_run_resumes_to_the_same_bits(case, tmp_path):
    """A run that crashes inside an epoch and is resumed has the bits of one that was not interrupted."""
    valid = {} if case.metrics_only else {"valid": case.loader()}
    whole = case.fit(case.learner(**case.resumed), **valid)
    run = {"run": tmp_path / "run", "checkpoint": Checkpoint(every=2, frozen="fingerprint"), **valid}
    with pytest.raises(Crash):
        case.fit(case.learner(**case.resumed), **run, callbacks=[crash_at(update=3)])
    resumed = case.fit(case.learner(**case.resumed), **run, resume=True)
    assert_same(weights(resumed.model), weights(whole.model))
    assert resumed.history["train/loss"] == whole.history["train/loss"]
    loaded = stoker.Fitted.load(tmp_path / "run", case.learner(**case.resumed))
    assert_same(weights(loaded.model), weights(whole.model))


@pytest.mark.parametrize("name", models("BERT", without=["diffusers"]))
def test_evaluation_weighs_samples_or_tokens_and_predictions_are_in_order(case):
    """`evaluate` has the mean over all samples (or tokens), and `predict` the outputs in the order of the data."""
    fitted = case.fit(case.learner(), epochs=1)
    assert not any(module.training for module in fitted.model.modules())
    model, batches = copy.deepcopy(fitted.model).to(DEVICE), case.batches()
    with torch.no_grad():
        if not case.metrics_only:
            losses = [(case.loss(model, batch).double(), count(case, batch)) for batch in batches]
            mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
            found = fitted.evaluate(case.loader())["loss"]
            assert abs(found - float(mean)) < 1e-6 * max(1.0, abs(float(mean)))
        if case.predict is not None:
            batches = case.batches(inputs=True)
            expected = [plain(case.predict(model, batch)) for batch in batches]
            whole = pytree.tree_map(lambda *parts: torch.cat(parts), *expected)
            assert_same(plain(fitted.predict(case.loader(inputs=True))), whole, tolerance=1e-6)


def count(case, batch):
    if case.count is not None:
        return float(case.count(batch))
    return len(pytree.tree_leaves(plain(batch))[0])


@pytest.mark.cuda
@pytest.mark.parametrize("name", models("LSTM", *test_transformers.CASES))
def test_a_captured_step_has_the_bits_of_an_eager_one(case):
    print(check_executors(case))
