import math
import resource

import pytest
import torch
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from torch.utils.tensorboard import SummaryWriter

from stoker.record import TensorBoardFile
from stoker.record._tfevents import tensorboard_events
from stoker.record._tfrecord import frame


def said(folder):
    return [(each.step, each.values) for each in tensorboard_events(folder)]


def test_what_is_written_is_read(tmp_path):
    file = TensorBoardFile(tmp_path / "deep", update=0)
    file.write({"a": 0.5, "b/ü": math.inf}, update=3, time=2.5)
    file.text("note", "hello", update=3)
    file.write({"a": math.nan}, update=4)
    first, second = tensorboard_events(tmp_path / "deep")  # while it is open
    file.close()
    assert first == (3, 2.5, {"a": 0.5, "b/ü": math.inf}, False)
    assert second.step == 4 and math.isnan(second.values["a"])


@pytest.mark.parametrize("room", [0, 5], ids="{} bytes left".format)
def test_what_does_not_fit_on_the_disk_leaves_nothing_and_hides_nothing_that_comes_later(tmp_path, room):
    file = TensorBoardFile(tmp_path, update=0)
    file.write({"a": 1.0}, update=1)
    before, limits = file.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left on device" if room else "File too large"):
                file.write({"a": 2.0}, update=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.path.read_bytes() == before
    file.write({"a": 3.0}, update=3)
    file.close()
    assert said(tmp_path) == [(1, {"a": 1.0}), (3, {"a": 3.0})]


def test_a_later_file_voids_what_an_earlier_one_said_from_its_update_on(tmp_path):
    for update in (0, 2):
        file = TensorBoardFile(tmp_path, update=update)
        for each in range(update, update + 4):
            file.write({"a": float(update)}, update=each)
        file.close()
    assert said(tmp_path) == [(0, {"a": 0.0}), (1, {"a": 0.0}), *((step, {"a": 2.0}) for step in range(2, 6))]


def test_what_torch_writes_is_read(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("Loss/train", 0.25, 7, walltime=1.5)
        writer.add_scalar("big", 1.0, 2**40)
        writer.add_text("note", "hello")
        writer.add_histogram("weights", torch.ones(2), 1)
    assert said(tmp_path) == [(7, {"Loss/train": 0.25}), (2**40, {"big": 1.0})]
    assert tensorboard_events(tmp_path)[0].time == 1.5


@pytest.mark.parametrize("step", [5, -1])
def test_scalars_as_tensorboard_2_writes_them_are_read(tmp_path, step):
    event = Event(wall_time=1.0, step=step, summary=scalar_pb("epoch_loss", 0.5))
    listed = Event(step=6)
    listed.summary.value.add(tag="double").tensor.dtype = 2
    listed.summary.value[0].tensor.double_val.append(0.1)
    vector = Event(step=7)
    vector.summary.value.add(tag="vector").tensor.dtype = 1
    vector.summary.value[0].tensor.float_val.extend([1.0, 2.0])
    start = Event(step=0, session_log=SessionLog(status=SessionLog.STOP))
    messages = [each.SerializeToString() for each in (event, listed, vector, start)]
    (tmp_path / "events.out.tfevents.1").write_bytes(b"".join(map(frame, messages)))
    assert said(tmp_path) == [(step, {"epoch_loss": 0.5}), (6, {"double": 0.1})]


def test_damage_costs_what_is_damaged(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    good = Event(step=1)
    good.summary.value.add(tag="a", simple_value=1.0)
    whole = frame(good.SerializeToString())
    path.write_bytes(frame(b"\xff\xff") + frame(b"\x28\x05") + frame(b"\x12\x00") + whole + whole[:-1])
    assert said(tmp_path) == [(1, {"a": 1.0})]
    path.write_bytes(b"no such file\n" * 100)
    assert said(tmp_path) == []
