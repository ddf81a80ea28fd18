"""Models of Transformers: they compute their own loss from a mapping with labels."""

import os
import shutil
from dataclasses import replace
from functools import partial

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from tests.libraries.checks import Case, assert_same, check_executors, weights

GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 40, (10, 6), generator=GENERATOR)
MASK = (torch.arange(6) < torch.randint(3, 7, (10, 1), generator=GENERATOR)).long()
TOKENS = IDS.masked_fill(MASK == 0, -100)
TEXT = {"input_ids": IDS, "attention_mask": MASK}
CLASSES = torch.randint(0, 3, (10,), generator=GENERATOR)
PIXELS = {"pixel_values": torch.randn(10, 3, 8, 8, generator=GENERATOR)}
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def bert():
    import transformers

    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=8, num_labels=3, **SIZES)
    return transformers.BertForSequenceClassification(config)


def gpt2(**settings):
    import transformers

    sizes = {"vocab_size": 40, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2} | settings
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def t5(**settings):
    import transformers

    sizes = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2} | settings
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def vit():
    import transformers

    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **SIZES)
    )


def own_loss(model, batch):
    return model(**batch).loss


def predict(model, batch):
    return {"logits": model(**batch).logits}


def shifted_tokens(batch):
    return (batch["labels"][:, 1:] != -100).sum()


CASES = {
    "BERT": Case(bert, {**TEXT, "labels": CLASSES}, own_loss, inputs=TEXT, predict=predict),
    "GPT-2": Case(gpt2, {**TEXT, "labels": TOKENS}, own_loss, count=shifted_tokens),
    "T5": Case(t5, {**TEXT, "labels": TOKENS}, own_loss, count=lambda batch: (batch["labels"] != -100).sum()),
    "ViT": Case(vit, {**PIXELS, "labels": CLASSES}, own_loss, inputs=PIXELS, predict=predict),
}


@pytest.mark.soak
def test_the_model_is_saved_and_loaded_as_usual(tmp_path):
    import transformers

    case = CASES["BERT"]
    fitted = case.fit(case.learner(ema=0.9), valid=case.loader(), keep="best")
    assert type(fitted.model) is transformers.BertForSequenceClassification
    fitted.model.save_pretrained(tmp_path / "bert")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "bert").eval()
    assert_same(weights(again), weights(fitted.model))
    with torch.no_grad():
        assert_same(again(**TEXT).logits, fitted.predict(TEXT)["logits"], tolerance=1e-6)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports inductor
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
def test_a_compiled_step_computes_the_same():
    case = replace(CASES["GPT-2"], make=partial(gpt2, n_layer=1), batch_size=5)  # all batches have one size
    plan = check_executors(case, compile=True)
    assert "compiled: forward, backward" in plan
