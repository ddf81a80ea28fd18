"""The one-line reason why a step can't be compiled or captured."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stoker.engine._replayable import CannotReplay, explain_failure


def _raise_chained():
    try:
        raise ValueError("the cause,\nin two lines\n\nand much more")
    except ValueError as error:
        raise RuntimeError("the consequence") from error


def test_the_reason_is_the_first_exception_of_a_chain_in_one_line():
    with pytest.raises(RuntimeError) as found:
        _raise_chained()
    assert explain_failure(found.value).startswith(
        "ValueError: the cause, in two lines (test_explain_failure.py, line "
    )


def test_cannot_replay_is_not_replaced_by_its_cause():
    with pytest.raises(CannotReplay) as found:
        try:
            raise ValueError("a detail")
        except ValueError as error:
            raise CannotReplay("our reason") from error
    assert explain_failure(found.value) == "our reason"


def test_a_value_read_on_the_host_is_reported_with_its_line():
    with (
        FakeTensorMode() as mode,
        pytest.raises(Exception, match="DataDependent|data-dependent|_local_scalar") as found,
    ):
        bool(mode.from_tensor(torch.ones(1)) > 0)
    assert explain_failure(found.value).startswith("the step reads a value on the host (test_explain_failure.py, line ")


def test_a_tensor_outside_of_the_model_is_reported_with_its_line():
    with FakeTensorMode() as mode, pytest.raises(AssertionError) as found:
        mode.from_tensor(torch.ones(1)) + torch.ones(1).detach()[:] + _outside
    assert explain_failure(found.value).startswith(
        "the step reads a tensor that is neither a parameter nor a buffer (test_explain_failure.py"
    )


_outside = torch.ones(1)


def test_an_error_without_a_message_is_reported_with_its_line():
    with pytest.raises(AssertionError) as found:
        raise AssertionError
    assert "AssertionError: test_explain_failure.py, line " in explain_failure(found.value)


def test_an_error_of_a_compiler_process_is_reported_with_its_own_message():
    from torch._inductor.compile_worker.subproc_pool import SubprocException

    details = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\nOSError: no space left on device\n'
    with pytest.raises(SubprocException) as found:
        raise SubprocException(details)
    assert "OSError: no space left on device" in explain_failure(found.value)
