"""Why a step could not be made, in a line."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stoker.engine._replayable import CannotReplay, explain_failure


def _chained():
    try:
        raise ValueError("the cause,\nin two lines\n\nand much more")
    except ValueError as error:
        raise RuntimeError("what came of it") from error


def test_the_reason_is_the_first_thing_that_went_wrong_in_a_line():
    with pytest.raises(RuntimeError) as found:
        _chained()
    assert explain_failure(found.value).startswith(
        "ValueError: the cause, in two lines (test_explain_failure.py, line "
    )


def test_our_own_words_go_before_what_led_to_them():
    with pytest.raises(CannotReplay) as found:
        try:
            raise ValueError("a detail")
        except ValueError as error:
            raise CannotReplay("in our words") from error
    assert explain_failure(found.value) == "in our words"


def test_a_value_that_was_read_on_the_host_is_told_with_its_line():
    with (
        FakeTensorMode() as mode,
        pytest.raises(Exception, match="DataDependent|data-dependent|_local_scalar") as found,
    ):
        bool(mode.from_tensor(torch.ones(1)) > 0)
    assert explain_failure(found.value).startswith("the step reads a value on the host (test_explain_failure.py, line ")


def test_a_tensor_from_elsewhere_is_told_with_its_line():
    with FakeTensorMode() as mode, pytest.raises(AssertionError) as found:
        mode.from_tensor(torch.ones(1)) + torch.ones(1).detach()[:] + _elsewhere
    assert explain_failure(found.value).startswith(
        "the step reads a tensor that is neither a parameter nor a buffer (test_explain_failure.py"
    )


_elsewhere = torch.ones(1)


def test_an_error_without_a_text_says_where_it_came_up():
    with pytest.raises(AssertionError) as found:
        raise AssertionError
    assert "AssertionError: test_explain_failure.py, line " in explain_failure(found.value)


def test_an_error_of_a_compiling_process_is_told_in_its_own_words():
    from torch._inductor.compile_worker.subproc_pool import SubprocException

    details = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\nOSError: no space left on device\n'
    with pytest.raises(SubprocException) as found:
        raise SubprocException(details)
    assert "OSError: no space left on device" in explain_failure(found.value)
