"""What is written is read by TensorBoard's own reader."""

import json
import logging

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stoker import InvalidArgument
from stoker.callbacks import TensorBoard, on
from tests.callbacks.tracked_fits import CONFIG, cut_off_and_resume, fit, log_media, points, same, warnings


def board(folder):
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(folder, *, running=False):
    found = board(folder)
    return {
        name: [(point.step, point.value) for point in found.Scalars(name)]
        for name in found.Tags()["scalars"]
        if name.startswith("running/") == running
    }


def text(found, name):
    (point,) = found.Tensors(f"{name}/text_summary")
    return point.tensor_proto.string_val[0].decode()


def test_tensorboard_reads_a_run(tmp_path):
    run = fit(TensorBoard(), run=tmp_path / "run")
    folder = tmp_path / "run" / "tensorboard"
    assert same(scalars(folder), points(run), bits=32) and scalars(folder)
    found = board(folder)
    assert json.loads(text(found, "config").strip("`\n")) == CONFIG
    assert json.loads(text(found, "run").strip("`\n"))["id"] == run.id
    assert [meta.plugin_data.plugin_name for meta in [found.SummaryMetadata("config/text_summary")]] == ["text"]
    (first, *_) = found.Scalars("train/loss")
    assert first.wall_time == run.record.events_of("train")[0].time
    assert warnings(run) == []


def test_media_are_shown(tmp_path):
    fit(TensorBoard(), run=tmp_path / "run", epochs=1, more=[on(epoch_end=log_media)])
    found = board(tmp_path / "run" / "tensorboard")
    assert found.Tags()["images"] == ["picture"] and found.Tags()["audio"] == ["sound"]
    (image,) = found.Images("picture")
    assert (image.width, image.height, image.step, image.encoded_image_string[:4]) == (6, 4, 4, b"\x89PNG")
    (histogram,) = found.Histograms("weights")
    assert sum(histogram.histogram_value.bucket) == histogram.histogram_value.num == 100
    assert text(found, "words").strip() == "<b>bold</b>" and '"rows": [[1]]' in text(found, "table")


def test_a_resumed_run_replaces_the_values_it_trains_again(tmp_path):
    run = cut_off_and_resume(TensorBoard, tmp_path / "run")
    folder = tmp_path / "run" / "tensorboard"
    assert len(list(folder.iterdir())) == 2
    assert same(scalars(folder), points(run), bits=32)
    assert [update for update, _ in scalars(folder)["valid/loss"]] == [4, 8, 12, 16]
    assert warnings(run) == []


def test_fits_without_a_run_directory_have_their_own_folders(tmp_path):
    with pytest.raises(InvalidArgument, match="TensorBoard writes files: give fit run="):
        fit(TensorBoard())
    for _ in range(2):
        fit(TensorBoard(tmp_path, name="small"), epochs=1)
    assert [folder.name[:6] for folder in tmp_path.iterdir()] == ["small-", "small-"]
    assert all(list(scalars(folder)) == ["train/loss", "valid/loss"] for folder in tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    run = fit(TensorBoard(tmp_path / "file"), run=tmp_path / "run")
    (warning,) = warnings(run)
    assert warning.startswith("TensorBoard failed, and training continues; it receives nothing: NotADirectoryError")
    assert run.summary()["state"] == "finished"
