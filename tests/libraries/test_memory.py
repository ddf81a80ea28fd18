"""Micro-batches and recomputed activations, with models and batches of other libraries."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from stoker import optim
from tests.libraries import test_torch_geometric, test_torchvision, test_transformers

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # while it is imported
]

CASES = {
    "BERT": (lambda: test_transformers.CASES["BERT"], "BertLayer"),
    "GPT-2": (lambda: test_transformers.CASES["GPT-2"], "GPT2Block"),
    "T5": (lambda: test_transformers.CASES["T5"], "T5Block"),
    "ViT": (lambda: test_transformers.CASES["ViT"], "ViTLayer"),
    "graphs": (lambda: test_torch_geometric.case("GCN"), "GCNConv"),
}


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def fit_without_dropout(case, **arguments):
    learner = case.learner(optimizer=optim.SGD())
    without_dropout(learner.model)
    return case.fit(learner, **arguments)


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_of_a_library_give_the_updates_of_whole_batches(name):
    case = CASES[name][0]()
    whole, parts = fit_without_dropout(case), fit_without_dropout(case, micro_batch=3)
    assert whole.history["train/loss"] == pytest.approx(parts.history["train/loss"], rel=1e-5)
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def fit_recomputed(name, *, use_cache=False):
    make, block = CASES[name]
    case = make()
    learner = case.learner()
    for module in learner.model.modules():  # as if the model had been created so
        if hasattr(module, "config") and not use_cache:
            module.config.use_cache = False
    blocks = [module for module in learner.model.modules() if type(module).__name__ == block]
    assert blocks
    return case.fit(replace(learner, recompute=blocks))


@pytest.mark.parametrize("name", CASES)
def test_recomputed_blocks_of_a_library_give_the_same_bits(name):
    """With dropout, which draws the same numbers twice."""
    case = CASES[name][0]()
    kept, recomputed = case.fit(case.learner()), fit_recomputed(name)
    for key, value in kept.model.state_dict().items():
        assert torch.equal(recomputed.model.state_dict()[key], value), key


def test_a_cache_of_keys_and_values_is_named_as_the_reason_of_an_error():
    with pytest.raises(CheckpointError) as caught:
        fit_recomputed("T5", use_cache=True)
    assert any("use_cache=False in its config" in note for note in caught.value.__notes__)


def test_a_cache_and_a_mask_are_named_as_the_reason_of_an_error():
    with pytest.raises(RuntimeError) as caught:
        fit_recomputed("GPT-2", use_cache=True)
    assert any("use_cache=False" in note for note in caught.value.__notes__)


def test_images_of_different_sizes_are_split_with_their_boxes():
    case = test_torchvision.detecting()
    assert case.fit(case.learner(), micro_batch=1, epochs=1).updates == len(case.batches())


def test_a_tensordict_and_an_encoding_keep_their_class():
    from tensordict import TensorDict
    from transformers import BatchEncoding

    from stoker.engine import Batch, split_batch

    ids = torch.arange(10).view(5, 2)
    for value in (TensorDict({"ids": ids}, batch_size=[5]), BatchEncoding({"ids": ids})):
        first, second = (part.value for part in split_batch(Batch(value), 2))
        assert type(first) is type(value)
        assert torch.equal(torch.cat([first["ids"], second["ids"]]), ids)
