"""Causal language modelling with Transformers: a small GPT-2 learns the bytes of Python's own documentation.

Batches are split into micro-batches, whose gradients add up to those of the batch. Prints the perplexity per byte on
pages that it was not trained on, and a text of its own. Takes about 20 seconds.
"""

from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import stoker
from stoker import metrics, schedule

LENGTH = 32


def rows(pages):
    """Cuts pages into rows of bytes; GPT-2 compares each byte of `labels` with its prediction from those before."""
    tokens = torch.tensor(list("\n".join(pages).encode()))
    tokens = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
pages = list(topics.values())
train, valid = rows(pages[:60]), rows(pages[60:64])
config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
learner = stoker.Learner(
    GPT2LMHeadModel(config),
    lr=schedule.cosine(5e-3, warmup=0.1),  # over the updates of the fit
    metrics=[metrics.Perplexity(on="valid")],
    clip_norm=1.0,
    seed=0,
)
fitted = learner.fit(
    train, valid=valid, updates=300, batch_size=32, micro_batch=16, validate_every=100, monitor="valid/perplexity"
)
print(f"perplexity per byte in validation: {fitted.best.value:.1f}, of guessing 256")
prompt = torch.tensor([list(b"The ")])
written = fitted.model.generate(prompt, max_new_tokens=28, do_sample=True, top_k=5, pad_token_id=0)
print(bytes(written[0].tolist()).decode(errors="replace"))
