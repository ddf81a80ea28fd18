"""LoRA adapters of PEFT on a frozen model of Transformers: small checkpoints, and `save_pretrained`."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import load_file

import stoker
from stoker import Checkpoint, StateMismatch
from tests.libraries.checks import Case, assert_same, weights
from tests.libraries.test_transformers import gpt2, own_loss, predict

pytestmark = pytest.mark.soak
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 40, (10, 6), generator=GENERATOR)
ROWS = {"input_ids": IDS, "labels": IDS}


def make():
    import peft

    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM", fan_in_fan_out=True)
    return peft.get_peft_model(gpt2(), lora)


CASE = Case(
    make,
    ROWS,
    own_loss,
    inputs={"input_ids": IDS},
    predict=predict,
    count=lambda batch: batch["labels"][:, 1:].numel(),
)


def test_a_checkpoint_holds_the_adapter_only(tmp_path):
    assert "(frozen)" in str(stoker.summary(CASE.model(), {"input_ids": IDS}))
    run = tmp_path / "run"
    fitted = CASE.fit(CASE.learner(), run=run, checkpoint=Checkpoint(frozen="fingerprint"))
    newest = max((run / "checkpoints").iterdir())
    assert all(".lora_" in name for name in load_file(newest / "model.safetensors") if name.startswith("parameters."))
    assert_same(weights(stoker.load_for_inference(run, CASE.model())), weights(fitted.model))
    with pytest.raises(StateMismatch, match="Create the model with the weights that the run started from"):
        stoker.load_for_inference(run, make())  # another base, with random weights


def test_the_adapter_is_saved_and_loaded_as_usual(tmp_path):
    import peft
    import transformers

    fitted = CASE.fit(CASE.learner())
    fitted.model.save_pretrained(tmp_path / "adapter")
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    base = CASE.model().unload()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert_same(loaded(IDS).logits, fitted.model(IDS).logits)
        merged = fitted.model.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "merged").eval()
        assert_same(again(IDS).logits, merged(IDS).logits)
