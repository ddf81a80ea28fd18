"""Draws the README's pictures and prints its tables from the result files; no figure is typed by hand.

    python -m benchmarks.plots                    from the newest results: docs/pictures/speed-*.svg, and the tables
    python -m benchmarks.plots --help             other directories

Uses the newest file of the CPU. Results of the GPU may be in several files with the same versions, since they are
measured in parts.
"""

import argparse
import json
import statistics
from functools import reduce
from pathlib import Path

from benchmarks._compare import CONTENDERS, check_targets
from benchmarks._harness import RESULTS, merged

PICTURES = RESULTS.parent.parent / "docs" / "pictures"
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
    return "\n".join(lines)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the directory of the JSON files")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="the directory for the pictures")
    arguments = parser.parse_args()
    measured = load_results(arguments.results)
    if not measured:
        parser.error(f"{arguments.results} has no results: run python -m benchmarks.fit or benchmarks.gpu first")
    for device, found in measured.items():
        path = arguments.pictures / f"speed-{'cpu' if device == 'cpu' else 'gpu'}.svg"
        draw(found, path)
        print(f"{path}\n\n{caption(found)}\n\n{table(found)}\n")
        for work in found["workloads"]:
            for line in check_targets(found["workloads"][work]["contenders"], device, work):
                print(f"{work}: {line}")
        print()


if __name__ == "__main__":
    main()
