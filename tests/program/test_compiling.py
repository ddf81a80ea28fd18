"""The mark that torch's own code looks at."""

import pytest
import torch

from stoker.program import compiling


def test_it_is_set_inside_and_as_it_was_outside():
    with compiling():
        with compiling():
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()


def test_an_exception_takes_it_away_too():
    with pytest.raises(ZeroDivisionError), compiling():
        raise ZeroDivisionError
    assert not torch.compiler.is_compiling()
