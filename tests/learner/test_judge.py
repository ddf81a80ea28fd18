"""A model judged on a data set: by its answers in the data's order, with the worst samples at hand."""

import numpy as np
import pytest
import torch
from torch import nn

from stoker.data import Loader
from stoker.errors import BadData
from stoker.learner._judge import judge
from stoker.steps import Supervised


def judged(answers, source, *, model=None, batch_size=3, **how):
    batches = Loader(source, batch_size=batch_size)
    return judge(answers, lambda: iter(batches.at(epoch=0)), supervised=Supervised(model or nn.Identity(), None), **how)


def test_the_worst_samples_come_with_their_own_inputs():
    x = torch.arange(20.0).reshape(10, 2)
    y = torch.tensor([0, 1] * 5)
    answers = torch.nn.functional.one_hot(y, 2) * 4.0
    answers[7] = torch.tensor([9.0, 0.0])  # sure, and wrong
    found = judged(answers, (x, y), labels=["even", "odd"])
    assert found.confusion.tolist() == [[5, 0], [1, 4]] and found.labels == ["even", "odd"]
    worst = found.worst[0]
    assert worst.place == 7 and worst.target == "odd" and worst.answer.startswith("even")
    assert np.array_equal(worst.value, [14.0, 15.0])
    assert all(np.array_equal(each.value, x[each.place]) for each in found.worst)


def test_named_columns_and_numbers():
    class Net(nn.Module):
        def forward(self, inputs):
            return inputs

    x = torch.arange(6.0).reshape(6, 1)
    found = judged(x + torch.tensor([0, 0, 0, 3.0, 0, 0])[:, None], {"inputs": x, "target": x}, model=Net())
    assert found.task == "regression" and found.worst[0].place == 3 and found.worst[0].value.tolist() == [3.0]


@pytest.mark.parametrize("what", ["answers", "targets"])
def test_what_can_not_be_judged(what):
    x = torch.ones(4, 2)
    answers = {"logits": x} if what == "answers" else x
    source = {"input": x, "a": x, "b": x} if what == "targets" else (x, x)
    with pytest.raises(BadData, match=r"its answers have to be one tensor.*report\.judged takes arrays of one's own"):
        judged(answers, source)
