"""Recurrent models with packed sequences of different lengths."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from stoker import data
from tests.libraries.checks import Case

GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = [3, 7, 1, 5, 5, 2, 6, 4, 7, 1]
ROWS = [(torch.randn(length, 4, generator=GENERATOR), number % 3) for number, length in enumerate(LENGTHS)]


def collate(rows):
    packed = pack_sequence([sequence for sequence, _ in rows], enforce_sorted=False)
    return packed, torch.tensor([target for _, target in rows])


class Classifier(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body = kind(4, 8, num_layers=2, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(16, 3)

    def forward(self, sequences: PackedSequence):
        outputs, lengths = pad_packed_sequence(self.body(sequences)[0])
        return self.head(outputs.sum(0) / lengths.to(outputs.device).unsqueeze(1))


def case(kind):
    def loss(model, batch):
        sequences, targets = batch
        return F.cross_entropy(model(sequences), targets)

    return Case(
        lambda: Classifier(kind),
        data.Loader(ROWS, batch_size=4, collate_fn=collate),
        loss,
        {"loss": nn.CrossEntropyLoss()},
        batch_size=None,
        predict=lambda model, batch: model(batch[0]),
        count=lambda batch: len(batch[1]),
    )
