import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint._json import from_json, to_json
from stoker.errors import BadFile


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_to_the_bit(number):
    assert struct.pack("d", from_json(to_json(number), "here")) == struct.pack("d", number)


def test_what_json_has_no_number_for_is_not_written():
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            to_json([number])


@pytest.mark.parametrize(("text", "why"), [
    (b"", "Expecting value"), (b"{", "Expecting property"), (b"{} x", "Extra data"), (b"\xff", "can't decode"),
    (b'{"a": 1, "a": 2}', "a key comes twice"), (b"[NaN]", "NaN is no number of JSON's"),
    (b"[-Infinity]", "-Infinity is no number"), (b"[" * 100_000, "recursion"), (b"9" * 5000, "digits"),
    ("[1]".encode("utf-16"), "decode"),
], ids=range(10))  # fmt: skip
def test_odd_texts_are_refused(text, why):
    with pytest.raises(BadFile, match=rf"^here is not the JSON that it should be: .*{why}"):
        from_json(text, "here")
