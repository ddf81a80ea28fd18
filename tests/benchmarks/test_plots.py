"""Pictures and tables out of results: the numbers are the files', and the same files give the same bytes."""

import json
import statistics
import sys
from itertools import accumulate

import pytest

from benchmarks import plots
from benchmarks._harness import RESULTS, beside


def write(path, device, torch="2.13.0", **workloads):
    kept = {
        name: {
            "text": f"a {name} of some size",
            "contenders": {
                each.replace("_", "-"): {"µs per update": [micros], "memory, MB": {"reserved": 1.0}}
                for each, micros in times.items()
            },
        }
        for name, times in workloads.items()
    }
    machine = {"cpu": "Some CPU", "cores": 2, "python": "3.11.7", "gpu": "Some GPU" if device == "cuda" else None}
    found = {"machine": machine, "versions": {"torch": torch}, "device": device, "workloads": kept}
    path.write_text(json.dumps(found))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "fit-2026-01-01.json", "cpu", toy={"dataloader": 999.0})
    toy = {"dataloader": 700.0, "jax": 62.04, "stoker": 350.0, "stoker_compile": 70.0}
    write(tmp_path / "fit-2026-01-02.json", "cpu", toy=toy, digits={"dataloader": 9000.0, "stoker": 8100.0})
    write(tmp_path / "gpu-2026-01-01.json", "cuda", torch="2.10.0", digits={"dataloader": 1.0, "lightning": 1.0})
    write(tmp_path / "gpu-2026-01-02.json", "cuda", digits={"dataloader": 2000.0, "stoker": 500.0})
    write(tmp_path / "gpu-2026-01-03.json", "cuda", digits={"stoker": 300.0, "jax": 400.0})
    (tmp_path / "fit-2025-01-01.json").write_text('{"contenders": {}}')  # as they were before there were workloads
    return tmp_path


def test_the_newest_counts_and_the_parts_of_a_gpu_are_put_together(folder):
    found = plots.results(folder)
    assert list(plots.medians(found["cpu"], "toy")) == ["dataloader", "stoker", "stoker-compile", "jax"]
    assert plots.medians(found["cuda"], "digits") == {"dataloader": 2000.0, "stoker": 300.0, "jax": 400.0}
    assert plots.ratios(found["cuda"], "digits")["stoker"] == 0.15


def test_without_the_dataloader_loop_there_is_no_ratio(tmp_path):
    write(tmp_path / "fit-2026-01-01.json", "cpu", toy={"stoker": 350.0})
    assert plots.ratios(plots.results(tmp_path)["cpu"], "toy") == {}


def test_the_table_is_markdown_with_stoker_in_bold(folder):
    assert plots.table(plots.results(folder)["cpu"]).splitlines() == [
        "| | toy, µs | × | digits, µs | × |",
        "|---|--:|--:|--:|--:|",
        "| plain torch, DataLoader, loss.item() | 700 | 1.00 | 9,000 | 1.00 |",
        "| **stoker** | **350** | **0.50** | **8,100** | **0.90** |",
        "| **stoker, compile=True** | **70.0** | **0.10** |  |  |",
        "| JAX, jit | 62.0 | 0.09 |  |  |",
    ]


def test_the_caption_says_where_and_with_what(folder):
    found = plots.results(folder)
    assert plots.caption(found["cpu"]) == "Some CPU, one thread; Python 3.11.7; torch 2.13.0"
    assert plots.caption(found["cuda"]).startswith("Some GPU; ")


def test_pictures_are_drawn_the_same_every_time(folder, monkeypatch, capsys):
    first, second = folder / "first", folder / "second"
    for place in (first, second):
        monkeypatch.setattr(sys, "argv", ["plots", "--results", str(folder), "--pictures", str(place)])
        plots.main()
    for name in ("speed-cpu.svg", "speed-gpu.svg"):
        drawn = (first / name).read_bytes()
        assert drawn == (second / name).read_bytes() and plots.OWN.encode() in drawn
    out = capsys.readouterr().out
    assert "toy: stoker against dataloader: 0.500, bar ≤ 0.5: met" in out and "| JAX, jit | 400 | 0.20 |" in out


def test_without_results_it_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["plots", "--results", str(tmp_path)])
    with pytest.raises(SystemExit):
        plots.main()
    assert "nothing was measured" in capsys.readouterr().err


# --- what the pages say is what was measured; newer files of one's own are beside those


ROOT = RESULTS.parent.parent


def kept(pattern):
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def says(page, *texts):
    words = " ".join((ROOT / page).read_text().split())
    return all(" ".join(text.split()) in words for text in texts)


def test_the_readmes_tables_are_those_of_kept_files():
    assert any(says("README.md", plots.table(found)) for found in kept("fit-*.json"))
    parts = accumulate(kept("gpu-*.json"), beside)  # which are taken one after the other
    assert any(says("README.md", plots.table(found)) for found in parts)


def test_the_readmes_start_and_frames_are_those_of_kept_files():
    def starts(found):
        taken = found["sweeps"].get("start", {}).get("toy", {})
        own, plain, other = (
            f"{statistics.median(taken[name]['process, s']):.1f}" if name in taken else "?"
            for name in ("stoker", "indexing", "lightning")
        )
        return f"is done {own} s after its process was started (plain torch: {plain}, Lightning: {other})"

    def frames(found):
        by = found["workloads"].get("toy", {}).get("contenders", {})
        own, other = (by.get(name, {}).get("frames") for name in ("stoker", "lightning"))
        return f"{own} frames of stoker's stand between `fit` and the loss (Lightning: {other})"

    assert any(says("README.md", starts(found)) for found in kept("sweep-cpu-*.json"))
    assert any(says("README.md", frames(found)) for found in kept("fit-*.json"))


def test_what_the_docs_say_shards_cost_was_measured():
    def texts(found):
        took = plots.medians(found, "gpt")
        alone, sharded, half = (f"{took[name] / 1e3:.1f}" for name in ("stoker", "stoker-fsdp", "stoker-fsdp-bf16"))
        return f"takes {alone} ms an update alone", f'{sharded} with `"fsdp"`', f"{half} with `Parallel("

    assert any(says("docs/distributed.md", *texts(found)) for found in kept("fsdp-*.json"))
