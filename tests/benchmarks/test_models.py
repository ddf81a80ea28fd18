"""The models that are trained: the published sizes, and shapes in and out."""

import torch

from benchmarks._models import GPT, Digits, ResNet18, mlp


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_sizes_are_the_published_ones():
    with torch.device("meta"):
        assert size_of(GPT()) == 124_475_904  # GPT-2 small with the vocabulary rounded up to 50,304
        assert size_of(ResNet18()) == 11_173_962  # for 32×32 images and ten classes
    assert size_of(Digits()) == 531_178
    assert size_of(mlp(32, 256, 256, 1)) == 74_497


def test_shapes():
    assert Digits()(torch.zeros(2, 28, 28)).shape == (2, 10)
    assert ResNet18(width=4)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert mlp(3, 32, 1)(torch.zeros(2, 3)).shape == (2, 1)


def test_a_token_sees_only_those_before_it():
    torch.manual_seed(0)
    model = GPT(vocabulary=16, length=8, depth=2, width=8, heads=2)
    tokens = torch.arange(8)[None]
    other = tokens.clone()
    other[0, 5] = 9
    same = (model(tokens) == model(other)).all(-1)[0]
    assert same.tolist() == [True] * 5 + [False] * 3
    assert model.head.weight is model.tokens.weight
