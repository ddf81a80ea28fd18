"""The lines of the block, in every size of terminal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Event, Record
from stoker.view.console._view import last_view, view
from stoker.view.console._watch import Watch
from tests.view.console.scenes import begin, end, epoch, progress


def watching(**extra):
    record = Record()
    watch = Watch(record)
    record.subscribe(watch.see)
    begin(record, **extra)
    return record, watch


def shown(watch, width=79, height=23, **how):
    return [line.plain.rstrip() for line in view(watch, width, height, **how)]


def halfway():
    record, watch = watching()
    for number in (1, 2):
        epoch(record, number, valid={"loss": 1 / number, "accuracy": number / 4}, lr=0.01, gpu_memory=3.0)
    progress(record, 3, 5, at=1005.0)
    return record, watch


def test_what_there_is_to_see():
    lines = shown(halfway()[1])
    assert lines[0] == ""
    assert lines[1].startswith(" Net (1,234 parameters) on cpu") and lines[1].endswith("0:05 · 0:03 left")
    assert lines[2].startswith(" epoch 3/4  ━") and lines[2].endswith("─  batch 5/10")
    assert lines[3].startswith(" total      ━") and lines[3].endswith("─  62 % · 25 updates")
    assert lines[2].count("━") * 2 + 1 == lines[2].count("━") + lines[2].count("─") == len(lines[3].split()[1])
    assert lines[4] == " 12.3k samples/s · lr 0.01 · gpu_memory 3 GB"
    assert lines[6].split() == ["train", "valid", "best", "train/loss", "valid/loss"]
    assert lines[7].split()[:6] == ["loss", "1.000", "0.5000*", "0.5000", "@2", "1.000"]
    assert lines[8].split()[:4] == ["accuracy", "0.5000*", "0.5000", "@2"]
    assert lines[-1].split()[0] == "0.5000", "the least of the curves stands at their foot"


def test_without_colours_the_curves_are_told_apart():
    lines = shown(halfway()[1], colours=False)
    assert lines[6].split()[-3:] == ["train/loss", "o", "valid/loss"]
    assert any("oo" in line for line in lines[7:]) and not any("oo" in line for line in shown(halfway()[1])[7:])


def test_in_ascii_everything_else_is_too():
    text = "\n".join(shown(halfway()[1], ascii_only=True))
    assert set(text) - set(map(chr, range(128))) <= set("━─·")  # which the writer spells


def test_validation_and_plans_without_end():
    record, watch = watching(epochs=None, batches=None)
    progress(record, 1, 7, at=1003.0, batches=None)
    assert shown(watch)[2].startswith(" epoch 1  ─") and shown(watch)[2].endswith("batch 7")
    assert shown(watch)[3].endswith("─  7 updates") and "━" not in "".join(shown(watch))
    progress(record, 1, 2, at=1004.0, phase="valid", batches=4)
    assert shown(watch)[2].endswith("validating 2/4")


def test_the_curves_are_cut_or_left_out_where_there_is_no_room():
    watch = halfway()[1]
    assert "⠤" in "".join(shown(watch)) or "⡀" in "".join(shown(watch))
    assert not any("⠀" in line for line in shown(watch, width=60)), "too narrow"
    assert len(shown(watch, height=12)) == 12 and any("⠀" in line for line in shown(watch, height=12))


def test_a_great_fall_is_drawn_by_ratio():
    record, watch = watching()
    for number, loss in enumerate([100.0, 1.0, 0.1], 1):
        epoch(record, number, valid=loss)
    assert shown(watch)[6].endswith("log")


def test_long_names_and_many_sets_are_cut():
    record, watch = watching()
    for name in "abcdefgh":
        record.append(Event("valid", 1001.0, epoch=1, values={f"{name * 12}/a_metric_with_a_long_name": 0.5}))
    assert all(len(line) <= 79 for line in shown(watch))
    assert any("a_metric_with_a_l…" in line for line in shown(watch)) and any(
        "aaaaaaa…" in line for line in shown(watch)
    )


@settings(max_examples=60)
@given(st.integers(1, 130), st.integers(1, 40), st.integers(0, 12), st.booleans())
def test_it_never_leaves_its_place(width, height, metrics, ascii_only):
    record, watch = watching()
    for number in (1, 2, 3):
        epoch(record, number, valid={f"metric{place}名": float(place) for place in range(metrics)} | {"loss": 1e-9})
    lines = view(watch, width, height, ascii_only=ascii_only)
    assert len(lines) <= height and all(line.cell_len <= width for line in lines)
    assert lines[0].plain == "" and not any("\n" in line.plain for line in lines)
    assert all(line.cell_len <= width for line in last_view(watch, width)[: 2 + metrics])


def test_what_stays():
    record, watch = halfway()
    record.append(Event("stop", 1006.0, epoch=3, text="Early stopping at epoch 3 of 4:\n enough"))
    end(record, 3, best=(2, 0.5))
    lines = [line.plain.rstrip() for line in last_view(watch, 79)]
    assert lines[:2] == ["", " Net (1,234 parameters) on cpu"]
    assert lines[3].split() == ["loss", "1.000", "0.5000*", "0.5000", "@2"]
    assert lines[-2:] == [
        " Early stopping at epoch 3 of 4: enough",
        " 3 epochs, 30 updates in 6.00 s; best valid/loss 0.5000 at epoch 2",
    ]
