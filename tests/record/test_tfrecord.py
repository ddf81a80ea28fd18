import io

import pytest

from stoker.record._tfrecord import frame, frames


def test_records_come_back():
    data = [b"", b"a", bytes(range(256)) * 40]
    assert list(frames(io.BytesIO(b"".join(map(frame, data))))) == data


def test_tensorboards_reader_agrees(tmp_path):
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    path, data = tmp_path / "events", [b"a", bytes(range(256)) * 40]
    path.write_bytes(b"".join(map(frame, data)))
    reader, found = PyRecordReader_New(str(path)), []
    for _ in data:
        reader.GetNext()
        found.append(bytes(reader.record()))
    assert found == data
    reader.file_handle.close()


@pytest.mark.parametrize("cut", range(1, 19))
def test_a_torn_end_is_passed_over(cut):
    whole = frame(b"abc")
    assert list(frames(io.BytesIO(whole + whole[:-cut]))) == [b"abc"]


@pytest.mark.parametrize("place", range(19))
def test_a_changed_byte_ends_the_reading(place):
    damaged = bytearray(frame(b"abc"))
    damaged[place] ^= 0x40
    assert list(frames(io.BytesIO(frame(b"first") + bytes(damaged) + frame(b"after")))) == [b"first"]
