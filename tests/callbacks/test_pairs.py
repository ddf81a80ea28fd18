from collections import namedtuple

import pytest
import torch
from torch import nn

from stoker import InvalidArgument, WrongType
from stoker.callbacks._pairs import Pairing, each_tensor, replaced, take_apart, tensors_in
from tests.callbacks.fits import context

Sample = namedtuple("Sample", ["image", "label"])


class Two(nn.Module):
    def forward(self, image, mask):
        return image


def taken(batch, model=None):
    ctx = context(model=model)
    ctx.batch = batch
    return take_apart(ctx, who="MixUp")


def test_a_tuple_ends_with_the_target():
    a, b, y = torch.ones(4, 2), torch.ones(4, 3), torch.ones(4)
    for batch in ((a, b, y), [a, b, y]):
        parts = taken(batch)
        assert parts.inputs == {0: a, 1: b} and parts.targets == {2: y} and parts.samples == 4
    assert taken(Sample(a, y)).targets == {1: y}


def test_in_a_mapping_forwards_names_are_the_inputs():
    image, mask, y, weight = torch.ones(4, 2), torch.ones(4, 2), torch.ones(4), torch.ones(4)
    parts = taken({"image": image, "label": y, "mask": mask, "weight": weight}, Two())
    assert parts.inputs == {"image": image, "mask": mask} and parts.targets == {"label": y}
    assert parts.weight == ("weight", weight)
    parts = taken({"image": image, "mask": mask, "weight": weight}, Two())  # the only thing left is the target
    assert parts.targets == {"weight": weight} and parts.weight is None


def test_putting_together_keeps_the_structure():
    assert replaced((1, 2, 3), {1: "x"}) == (1, "x", 3) and replaced([1, 2], {0: "x"}) == ["x", 2]
    assert replaced(Sample(1, 2), {1: "x"}) == Sample(1, "x") and isinstance(replaced(Sample(1, 2), {}), Sample)
    assert replaced({"a": 1, "b": 2}, {"b": "x"}) == {"a": 1, "b": "x"}
    tree = {"a": (1, Sample(2, [3])), "b": 4}
    assert each_tensor(lambda leaf: leaf * 10, tree) == {"a": (10, Sample(20, [30])), "b": 40}
    assert tensors_in(tree) == [1, 2, 3, 4]


def test_a_sample_that_counts_for_nothing_lends_no_target():
    pairing = Pairing(torch.tensor([1, 0, 2]), torch.tensor([0.75, 0.75, 0.5]))
    total, share = pairing.weighed(torch.tensor([1.0, 0.0, 0.0]))
    assert total.tolist() == [0.75, 0.25, 0.0]
    assert share.weight.tolist() == [1.0, 0.0, 1.0]
    total, share = pairing.weighed(torch.tensor([2.0, 1.0, 1.0]))
    assert total.tolist() == [1.75, 1.25, 1.0]
    torch.testing.assert_close(share.weight * total, torch.tensor([1.5, 0.75, 0.5]))


@pytest.mark.parametrize("batch", [torch.ones(4, 2), (torch.ones(4, 2),), "text"])
def test_a_batch_without_a_target_is_refused(batch):
    with pytest.raises(
        InvalidArgument, match=r"MixUp mixes inputs and targets: it needs batches of \(inputs…, target\)"
    ):
        taken(batch)


def test_what_is_no_tensor_or_has_other_rows_is_refused():
    with pytest.raises(WrongType, match="MixUp mixes tensors, and this batch holds str"):
        taken((torch.ones(2, 3), ["a", "b"]))
    with pytest.raises(
        InvalidArgument, match=r"a row for each sample in every tensor of the batch; got shapes \[2, 3\], \[4\]"
    ):
        taken((torch.ones(2, 3), torch.ones(4)))
    with pytest.raises(InvalidArgument, match="a row for each sample"):
        taken((torch.tensor(1.0), torch.tensor(1.0)))
