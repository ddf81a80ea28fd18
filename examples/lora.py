"""LoRA with PEFT: adapters on a frozen GPT-2 learn to count down, after the model has learned to count up.

Only the adapters are trained and saved; fingerprints identify the rest. Prints how many numbers are right before and
after, and the sizes of the files. Takes about 20 seconds.
"""

import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import stoker
from stoker import metrics


def count(rows, direction):
    """Rows of 16 numbers below 64, each the one before it plus (or minus) 1, 2 or 3."""
    start, step = torch.randint(64, (rows, 1)), torch.randint(1, 4, (rows, 1))
    numbers = (start + direction * step * torch.arange(16)) % 64
    labels = numbers.index_fill(1, torch.tensor([0, 1]), -100)  # nobody can know the first two
    return {"input_ids": numbers, "labels": labels}


torch.manual_seed(0)
up, down, valid = count(2000, 1), count(2000, -1), count(200, -1)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
base = GPT2LMHeadModel(config)
before = stoker.Learner(base, lr=3e-3, metrics=[metrics.Accuracy()], seed=0).fit(up, epochs=5, batch_size=64)
accuracy = before.evaluate(valid)["accuracy"]

model = get_peft_model(base.train(), LoraConfig(r=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True))
learner = stoker.Learner(model, lr=1e-2, metrics=[metrics.Accuracy()], seed=0)
checkpoint = stoker.Checkpoint(frozen="fingerprint")  # the default for large models
with tempfile.TemporaryDirectory() as folder:
    fitted = learner.fit(down, valid=valid, epochs=5, batch_size=64, run=Path(folder) / "run", checkpoint=checkpoint)
    model.save_pretrained(Path(folder) / "adapters")  # for PEFT
    saved = {path.name: path.stat().st_size for path in Path(folder).rglob("*model.safetensors")}
print(f"counting down: {accuracy:.3f} of the numbers right before, {fitted.evaluate(valid)['accuracy']:.3f} after")
print(f"{4 * sum(p.numel() for p in model.parameters()):,} bytes of parameters; saved: {saved}")
