"""The summary of a model, compared with sums computed by hand."""

import pytest
import torch
from torch import nn

import stoker
from stoker import summary


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, images, scale=1.0):
        return self.head(self.body(images * scale).flatten(1))


def test_layers_shapes_parameters_and_operations():
    found = summary(Net(), (torch.ones(2, 1, 8, 8), torch.zeros(2)))
    rows = {layer.name: layer for layer in found.layers}
    assert list(rows) == ["", "body", "body.0", "body.1", "body.2", "head"]
    assert rows["body.0"].output == "[2, 4, 6, 6]" and rows["body.0"].parameters == 40
    assert rows["head"].parameters == 144 * 10 + 10
    convolution, product = 2 * 2 * 4 * 36 * 9, 2 * 2 * 144 * 10  # multiplications and additions, for two samples
    assert (rows["body.0"].flops, rows["head"].flops, found.flops) == (convolution, product, convolution + product)
    assert found.parameters == sum(p.numel() for p in Net().parameters()) == found.trainable
    assert found.activation_bytes == 4 * (3 * 2 * 4 * 36 + 2 * 10)
    text = str(found)
    assert "Conv2d" in text and "[2, 4, 6, 6]" in text and "FLOPs" in text


def test_attention_counts_its_operations_on_every_device():
    samples, tokens, width, heads = 2, 3, 16, 4
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
    products = 2 * samples * tokens * width * (3 * width + width + 2 * 2 * width)  # query, key, value; output; the MLP
    attention = 2 * 2 * samples * heads * tokens * tokens * (width // heads)  # scores, and their mean of values
    assert summary(layer, torch.ones(samples, tokens, width)).flops == products + attention


def test_a_summary_does_not_change_the_model():
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    summary(model, torch.ones(2, 1, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert not model.head._forward_hooks and not model.head._forward_pre_hooks


def test_frozen_parts_and_several_outputs():
    assert "(frozen)" in str(summary(stoker.freeze(Net(), "head"), torch.ones(1, 1, 8, 8)))
    found = summary(nn.LSTM(4, 8, batch_first=True), (torch.ones(2, 5, 4),))
    assert found.layers[0].output == "[2, 5, 8], [1, 2, 8], [1, 2, 8]"


def test_errors_for_a_batch_that_does_not_match():
    with pytest.raises(stoker.InvalidArgument, match="Net can't be called with this batch"):
        summary(Net(), {"images": torch.ones(1, 1, 8, 8), "scale": "x"})
    model = Net()
    with pytest.raises(stoker.BadData, match="none of the batch's keys"):
        summary(model, {"pixels": torch.ones(1, 1, 8, 8)})
    assert not model.head._forward_hooks
