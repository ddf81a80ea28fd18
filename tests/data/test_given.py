import numpy as np
import pytest
import torch

from stoker.data._given import device_or_none, whole
from stoker.errors import InvalidArgument, WrongType


def test_whole_numbers_are_taken_as_python_has_them():
    assert type(whole("epoch", np.int64(3), least=0)) is int
    assert whole("epoch", torch.tensor(3), least=3) == 3


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (True, WrongType, "epoch has to be a whole number; got True"),
        (1.0, WrongType, "epoch has to be a whole number; got 1.0"),
        ("1", WrongType, "epoch has to be a whole number; got '1'"),
        (0, InvalidArgument, "epoch has to be at least 1; got 0"),
    ],
)
def test_other_values_are_explained(value, error, text):
    with pytest.raises(error, match=text):
        whole("epoch", value, least=1)


def test_a_device_is_one_that_torch_knows():
    assert device_or_none(None) is None
    assert device_or_none("meta") == device_or_none(torch.device("meta")) == torch.device("meta")
    with pytest.raises(InvalidArgument, match="device='gpu' is no device that torch knows"):
        device_or_none("gpu")
