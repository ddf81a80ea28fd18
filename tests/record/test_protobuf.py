import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.record._protobuf import double, fields, message, number, single


@given(st.integers(1, 1000), st.integers(0, 2**63 - 1), st.text(), st.binary())
def test_fields_come_back(field, value, text, data):
    found = list(fields(number(field, value) + message(field, text) + message(field, data) + double(field, 0.1)))
    assert found[:3] == [(field, value), (field, text.encode()), (field, data)]
    assert struct.unpack("<d", found[3][1]) == (0.1,)


def test_tensorboards_own_messages_agree():
    from tensorboard.compat.proto.event_pb2 import Event

    ours = double(1, 1.5) + number(2, 300) + message(5, message(1, message(1, "loss") + single(2, 0.25)))
    theirs = Event(wall_time=1.5, step=300)
    theirs.summary.value.add(tag="loss", simple_value=0.25)
    assert ours == theirs.SerializeToString()


def test_what_is_too_large_for_32_bits_is_infinite():
    assert [struct.unpack("<f", data)[0] for _, data in fields(single(1, 1e300) + single(1, -1e300))] == [
        float("inf"),
        float("-inf"),
    ]


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x09abc", b"\x0b", b"\xff" * 12, b"\x08"])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(ValueError, match="no protocol buffer"):
        list(fields(data))
