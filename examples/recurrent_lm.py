"""A recurrent language model that carries its state from batch to batch (truncated backpropagation through time).

The state is a buffer, so it is saved with the model, and a run that resumes inside an epoch continues with it. Prints
the perplexity per byte on other pages of Python's documentation. Takes about ten seconds.
"""

from pydoc_data.topics import topics

import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics

TEXTS, LENGTH = 32, 32  # texts that are read side by side; bytes of each in a batch


class RecurrentLM(nn.Module):
    def __init__(self, hidden: int = 128):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 32), nn.Linear(hidden, 128)
        self.rnn = nn.GRU(32, hidden, batch_first=True)
        self.register_buffer("state", torch.zeros(1, TEXTS, hidden))

    def forward(self, tokens):
        before = self.state.clone() if self.training else None
        output, after = self.rnn(self.embedding(tokens), before)
        if self.training:
            self.state.copy_(after.detach())  # the next batch starts here; no gradient flows back into this one
        return self.head(output).transpose(1, 2)  # [texts, 128, length]


def read(pages, texts, length):
    """Inputs and targets of all batches; row i of a batch continues row i of the batch before."""
    tokens = torch.tensor(list("\n".join(pages).encode("ascii", "replace")))
    batches = (len(tokens) - 1) // (texts * length)

    def cut(tokens):
        return tokens[: texts * batches * length].view(texts, batches, length).transpose(0, 1).flatten(0, 1)

    return cut(tokens), cut(tokens[1:])


pages = list(topics.values())
learner = stoker.Learner(
    RecurrentLM, loss=nn.CrossEntropyLoss(), lr=5e-3, metrics=[metrics.Perplexity()], clip_norm=1.0, seed=0
)
fitted = learner.fit(
    data.Loader(read(pages[:40], TEXTS, LENGTH), batch_size=TEXTS),  # in order
    valid=read(pages[40:44], 1, 256),
    epochs=3,
    callbacks=[callbacks.on(epoch_begin=lambda ctx: ctx.model.state.zero_())],  # the texts start again
)
perplexity = fitted.history["valid/perplexity"]
print(f"validation perplexity per byte: {perplexity[0]:.1f} after one epoch, {perplexity[-1]:.1f} at the end")
