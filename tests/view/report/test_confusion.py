"""Confusion matrices, out of a record and as pictures."""

import numpy as np
import pytest
from stoker.view.report._confusion import mistakes, shares

from stoker.errors import InvalidArgument
from stoker.record import Event, Record
from stoker.view.report import Remembered, confusion, confusions


def recorded(matrices, losses):
    record = Record()
    for epoch, (matrix, loss) in enumerate(zip(matrices, losses, strict=True), 1):
        cells = {f"valid/confusion/{row}/{column}": matrix[row][column] for row in (0, 1) for column in (0, 1)}
        at = {"time": float(epoch), "epoch": epoch, "update": 10 * epoch}
        record.append(Event("valid", values={"valid/loss": loss, **cells}, **at))
        record.append(Event("epoch", values={"valid/loss": loss, **cells}, **at))
    return record


def test_the_matrix_of_the_best_epoch():
    record = recorded([[[1, 2], [3, 4]], [[5, 0], [0, 5]], [[0, 9], [9, 0]]], [0.5, 0.1, 0.7])
    found = confusions(Remembered(record))
    assert list(found) == ["valid/confusion"] and found["valid/confusion"].tolist() == [[5, 0], [0, 5]]
    assert confusions(Remembered(Record())) == {}


def test_the_picture_holds_the_counts():
    figure = confusion([[8, 2, 0], [1, 9, 0], [0, 0, 0]], ["cat", "$dog", "_"])
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["8", "2", "0", "1", "9", "0", "0", "0", "0"]
    assert axes.images[0].get_array().tolist() == [[0.8, 0.2, 0], [0.1, 0.9, 0], [0, 0, 0]]
    assert [axes.get_xlabel(), axes.get_ylabel()] == ["taken for", "is"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_many_classes_are_drawn_without_numbers():
    axes = confusion(np.eye(50)).axes[0]
    assert len(axes.texts) == 0 and axes.images[0].get_array().shape == (50, 50)


def test_shares_and_mistakes():
    counts = np.array([[8.0, 2.0], [0.0, 0.0]])
    assert shares(counts).tolist() == [[0.8, 0.2], [0, 0]]
    assert mistakes(counts) == [(0, 1, 2.0)] and mistakes(np.eye(3)) == []


def test_what_is_no_matrix():
    with pytest.raises(InvalidArgument, match=r"expected a square matrix, \[classes, classes\]; got \[2, 3\]"):
        confusion(np.ones((2, 3)))
    with pytest.raises(InvalidArgument, match="1 labels for 2 classes; give one for each"):
        confusion(np.ones((2, 2)), ["cat"])
