"""Draws the pictures and fills the tables of README and docs/benchmarks.md; no figure is typed by hand.

    python -m benchmarks.publish                  from the newest results in benchmarks/results/

The newest file of each benchmark is used. Results of the GPU may be in several files with the same versions, since they
are measured in parts. A table is what stands between `<!-- NAME -->` and `<!-- end -->`.
"""

import argparse
import json
import statistics
from functools import reduce

from benchmarks import compile
from benchmarks._compare import CONTENDERS, check_targets
from benchmarks._harness import RESULTS, fill_page, merged
from benchmarks.accumulate import CONTENDERS as ACCUMULATING
from benchmarks.own_loop import CONTENDERS as OWN_LOOPS
from benchmarks.ragged import CONTENDERS as RAGGED
from benchmarks.samples import SOURCES

ROOT = RESULTS.parent.parent
PICTURES = ROOT / "docs" / "pictures"
IN_README = {
    "fused": "plain torch, indexing, fused optimizer",
    "stoker": "stoker",
    "stoker-compile": "stoker, compile=True",
    "lightning": "Lightning",
}
COLUMNS = {  # of the table in the README
    "toy, CPU": ("cpu", "toy"),
    "CNN, CPU": ("cpu", "digits"),
    "table, CPU": ("cpu", "tabular"),
    "CNN, H200": ("cuda", "digits"),
    "ResNet-18, H200": ("cuda", "resnet"),
    "table, H200": ("cuda", "tabular"),
}
BASELINES = ("dataloader", "fused")  # the first that was measured is 1
# Okabe and Ito's blue can be distinguished from grey by colour-blind people and in print.
OWN, OTHER, INK, PAPER = "#0072b2", "#b3b3b3", "#262626", "#ffffff"


def load_results(folder):
    """The results by device: "cpu", "cuda"."""
    fits = [found for found in _read_all(folder, "fit-*.json") if "workloads" in found]
    gpus = [found for found in _read_all(folder, "gpu-*.json") if found["device"] == "cuda"]
    newest = [found for found in gpus if found["versions"]["torch"] == gpus[-1]["versions"]["torch"]]
    return {
        **({"cpu": fits[-1]} if fits else {}),
        **({"cuda": reduce(merged, newest)} if newest else {}),
    }


def _read_all(folder, pattern):
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]


def medians(found, work_name):
    """µs per update, in the order of `CONTENDERS`."""
    measured = found["workloads"].get(work_name, {}).get("contenders", {})
    return {name: statistics.median(measured[name]["µs per update"]) for name in CONTENDERS if name in measured}


def ratios(found, work_name):
    """Ratios to the plain loop with a DataLoader, or to the faster one if that was not measured; else empty."""
    times = medians(found, work_name)
    base = next((name for name in BASELINES if name in times), None)
    return {} if base is None else {name: each / times[base] for name, each in times.items()}


def table(found):
    """Markdown with a row for each contender, and µs and ratio for each workload."""
    works = list(found["workloads"])
    times = {work: medians(found, work) for work in works}
    heads = "".join(f" {work}, µs | × |" for work in works)
    lines = [f"| |{heads}", "|---|" + "--:|--:|" * len(works)]
    for name, contender in CONTENDERS.items():
        if any(name in times[work] for work in works):
            cells = "".join(_cells(times[work].get(name), ratios(found, work).get(name)) for work in works)
            line = f"| {contender.label} |{cells}"
            lines.append(_bold(line) if name.startswith("stoker") else line)
    return lines


def _cells(time, ratio):
    return f" {'' if time is None else _microseconds(time)} | {'' if ratio is None else f'{ratio:.2f}'} |"


def _microseconds(time):
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def _bold(line):
    cells = [each.strip() for each in line.strip("|").split("|")]
    return "| " + " | ".join(f"**{each}**" if each else "" for each in cells) + " |"


def caption(found):
    """The machine and the versions of a measurement."""
    machine = found["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, one thread"
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items() if version)
    return f"{where}; Python {machine['python']}; {versions}"


def draw(found, path):
    """Draws horizontal bars for each workload: the time of an update relative to the plain loop."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt
    from matplotlib.transforms import blended_transform_factory

    panels = {work: each for work in found["workloads"] if (each := ratios(found, work))}
    settings = {"svg.hashsalt": "stoker", "font.size": 9, "text.color": INK, "axes.titlesize": 11}
    with mpl.rc_context(settings):
        heights = [len(each) + 1.6 for each in panels.values()]
        figure, axes = plt.subplots(
            *(len(panels), 1),
            figsize=(8, 0.26 * sum(heights)),
            height_ratios=heights,
            squeeze=False,
            facecolor=PAPER,
            layout="constrained",
        )
        for axis, (work, bars) in zip(axes.flat, panels.items(), strict=True):
            _panel(axis, bars)
            place = blended_transform_factory(figure.transFigure, axis.transAxes)
            title = f"{work}: {found['workloads'][work]['text']}"
            axis.text(0.01, 1.03, title, transform=place, weight="bold", in_layout=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Creator": None, "Date": None})
        plt.close(figure)


def _panel(axis, bars):
    ordered = dict(sorted(bars.items(), key=lambda pair: -pair[1]))
    own = [name.startswith("stoker") for name in ordered]
    labels = [CONTENDERS[name].label for name in ordered]
    shapes = axis.barh(labels, list(ordered.values()), color=[OWN if each else OTHER for each in own], height=0.72)
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
    axis.bar_label(shapes, [f"{each:.2f} ×" for each in ordered.values()], padding=3, color=INK, bbox=behind)
    axis.axvline(1, color=INK, linewidth=0.6, linestyle=":", zorder=0)
    axis.set_title(" ")  # space for the title above, which starts left of the axis
    axis.margins(x=0.1, y=0.02)
    axis.set_facecolor(PAPER)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labelbottom=False, colors=INK)
    for label, each in zip(axis.get_yticklabels(), own, strict=True):
        label.set_fontweight("bold" if each else "normal")


def tables(measured, folder):
    """The lines of every table, by page and name."""
    names = "own_loop", "record", "viewers", "save", "samples", "ragged", "compile", "accumulate"
    newest = {name: _read_all(folder, f"{name}-2*.json")[-1] for name in names}
    return {
        ROOT / "README.md": {"ratios": ratio_table(measured)},
        ROOT / "docs" / "benchmarks.md": {
            "cpu": table(measured["cpu"]),
            "gpu": table(measured["cuda"]),
            "own loop": own_loop_table(newest["own_loop"]["µs per update"]["toy"]),
            "samples": samples_table(newest["samples"]["µs per batch"]),
            "ragged": ragged_table(newest["ragged"]["bert"]),
            "compile": compile_table(newest["compile"]["workloads"]),
            "accumulate": accumulate_table(newest["accumulate"]["microseconds"]),
            "record": record_table(newest["record"]["us_written"]),
            "viewers": viewers_table(newest["viewers"]["viewers"]),
            "save": save_table(newest["save"]["ms"]),
        },
    }


def ratio_table(measured):
    """The ratios of a few contenders on all workloads, for the README."""
    found = {title: ratios(measured[device], work) for title, (device, work) in COLUMNS.items()}
    lines = [f"| | {' | '.join(found)} |", "|---|" + "--:|" * len(found)]
    for name, label in IN_README.items():
        line = _row(label, *(f"{each[name]:.2f}" if name in each else "" for each in found.values()))
        lines.append(_bold(line) if name.startswith("stoker") else line)
    return lines


def own_loop_table(found):
    base, slow = (statistics.median(found[name]) for name in ("indexing", "dataloader"))
    lines = ["| | µs | × indexing | × DataLoader |", "|---|--:|--:|--:|"]
    for name, times in found.items():
        if name != "dataloader":
            time = statistics.median(times)
            line = _row(OWN_LOOPS[name], f"{time:.0f}", f"{time / base:.2f}", f"{time / slow:.2f}")
            lines.append(_bold(line) if name.startswith("stoker") else line)
    return lines


def samples_table(found):
    lines = ["| batches of 32 | workers | `DataLoader`, µs | `Loader`, µs | × |", "|---|--:|--:|--:|--:|"]
    for name, by_workers in found.items():
        for workers, times in by_workers.items():
            theirs, ours = times["torch"], times["stoker"]
            ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
            medians = (f"{statistics.median(each):,.0f}" for each in (theirs, ours))
            lines.append(_row(SOURCES[name], workers, *medians, f"**{ratio:.2f}**"))
    return lines


def ragged_table(found):
    base = statistics.median(found["plain"]["seconds"])
    lines = [
        "| BERT with 2 layers of 128, texts of 20 to 500 tokens | s per epoch | × | tokens, × real ones | shapes |"
    ]
    lines.append("|---|--:|--:|--:|--:|")
    for name, each in found.items():
        time = statistics.median(each["seconds"])
        numbers = f"{time:.2f}", f"{time / base:.2f}", f"{each['tokens']:.2f}", each["shapes"]
        lines.append(_row(RAGGED[name], *numbers))
    return lines


def compile_table(found):
    heads = "start, s", "second start, s", "memory of an epoch, MB", "update, ms"
    lines = [_row("stoker / `torch.compile`", *heads), "|---|" + "--:|" * len(heads)]
    for name, by_contender in found.items():
        plain, own = (compile.numbers(by_contender[each]) for each in ("plain", "stoker"))
        scale = 1, 1, 1, 1e-3
        cells = (
            f"{own * unit:.1f} / {other * unit:.1f} = **{own / other:.2f}**"
            for own, other, unit in zip(own, plain, scale, strict=True)
        )
        lines.append(_row(name, *cells))
    return lines


def accumulate_table(found):
    lines = ["| µs | update | micro-batch | × |", "|---|--:|--:|--:|"]
    for name, label in ACCUMULATING.items():
        update, micro = found[name]["update"], found[name]["micro-batch"]
        lines.append(_row(label, _microseconds(update), _microseconds(micro), f"{micro / update:.2f}"))
    return lines


def record_table(found):
    heads = "".join(f" {values} values |" for values in found)
    lines = [f"| |{heads}", "|---|" + "--:|" * len(found)]
    plain, own = ([f"{statistics.median(each[name]):.1f}" for each in found.values()] for name in ("plain", "record"))
    lines.append(_row("`json.dumps` and `write`, µs per event", *plain))
    return [*lines, _bold(_row("`Record.append`, µs per event", *own))]


def viewers_table(found):
    lines = ["| | first picture, s | peak memory, MB |", "|---|--:|--:|"]
    for name, passes in found.items():
        first, memory = (statistics.median(each[key] for each in passes) for key in ("first", "MB"))
        lines.append(_row(f"`stoker {name}`", f"{first:.2f}", f"{memory:.0f}"))
    return lines


def save_table(found):
    lines = ["| state | `torch.save`, fsync | stoker, in the background | on the disk after |", "|---|--:|--:|--:|"]
    for size, each in found.items():
        plain, held, whole = (
            statistics.median(each[how][key])
            for how, key in (("torch.save", "held"), ("background", "held"), ("background", "whole"))
        )
        lines.append(_row(size, f"{plain:.1f} ms", f"**{held:.1f} ms**", f"{whole:.0f} ms"))
    return lines


def _row(*cells):
    return "| " + " | ".join(str(each) for each in cells) + " |"


def main():
    argparse.ArgumentParser(description=__doc__.split("\n\n")[0]).parse_args()
    measured = load_results(RESULTS)
    for device, found in measured.items():
        draw(found, PICTURES / f"speed-{'cpu' if device == 'cpu' else 'gpu'}.svg")
        print(caption(found))
        for work in found["workloads"]:
            for line in check_targets(found["workloads"][work]["contenders"], device, work):
                print(f"  {work}: {line}")
    for path, by_name in tables(measured, RESULTS).items():
        path.write_text(fill_page(path.read_text(), by_name))
        print(f"{path.relative_to(ROOT)}: {', '.join(by_name)}")


if __name__ == "__main__":
    main()
