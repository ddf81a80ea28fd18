"""The README's pictures, tables and bars, out of what was measured: no figure is typed in.

    python -m benchmarks.plots                    from the newest results: docs/pictures/speed-*.svg, and the tables
    python -m benchmarks.plots --help             other folders

Of the CPU's results the newest file counts; those of the GPU may lie in several files of the same versions, since they
are taken in parts.
"""

import argparse
import json
import statistics
from functools import reduce
from pathlib import Path

from benchmarks._bars import verdicts
from benchmarks._contenders import CONTENDERS
from benchmarks._harness import RESULTS, beside

PICTURES = RESULTS.parent.parent / "docs" / "pictures"
BASES = ("dataloader", "fused")  # the first that was measured is 1
# Okabe and Ito's blue tells itself from grey for every eye, and in print
OWN, OTHER, INK, PAPER = "#0072b2", "#b3b3b3", "#262626", "#ffffff"


def results(folder):
    """What was measured, by device: "cpu", "cuda"."""
    fits = [found for found in _files(folder, "fit-*.json") if "workloads" in found]
    gpus = [found for found in _files(folder, "gpu-*.json") if found["device"] == "cuda"]
    newest = [found for found in gpus if found["versions"]["torch"] == gpus[-1]["versions"]["torch"]]
    return {
        **({"cpu": fits[-1]} if fits else {}),
        **({"cuda": reduce(beside, newest)} if newest else {}),
    }


def _files(folder, pattern):
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]


def medians(found, work_name):
    """µs per update by contender, in the order of the contenders."""
    measured = found["workloads"].get(work_name, {}).get("contenders", {})
    return {name: statistics.median(measured[name]["µs per update"]) for name in CONTENDERS if name in measured}


def ratios(found, work_name):
    """By contender, to the plain loop; none where that was not measured."""
    taken, base = medians(found, work_name), base_of(found, work_name)
    return {} if base is None else {name: each / taken[base] for name, each in taken.items()}


def base_of(found, work_name):
    """The plain loop that others are held against: with a DataLoader, or the faster one where that was left out."""
    taken = medians(found, work_name)
    return next((name for name in BASES if name in taken), None)


def table(found):
    """Markdown: a row for each contender, for each workload its µs and its ratio."""
    works = list(found["workloads"])
    taken = {work: medians(found, work) for work in works}
    heads = "".join(f" {work}, µs | × |" for work in works)
    lines = [f"| |{heads}", "|---|" + "--:|--:|" * len(works)]
    for name, contender in CONTENDERS.items():
        if any(name in taken[work] for work in works):
            cells = "".join(_cells(taken[work].get(name), ratios(found, work).get(name)) for work in works)
            line = f"| {contender.label} |{cells}"
            lines.append(_bold(line) if name.startswith("stoker") else line)
    return "\n".join(lines)


def _cells(taken, ratio):
    return f" {'' if taken is None else _micros(taken)} | {'' if ratio is None else f'{ratio:.2f}'} |"


def _micros(taken):
    return f"{taken:,.0f}" if taken >= 100 else f"{taken:.1f}"


def _bold(line):
    cells = [each.strip() for each in line.strip("|").split("|")]
    return "| " + " | ".join(f"**{each}**" if each else "" for each in cells) + " |"


def caption(found):
    """Where and with what it was measured."""
    machine = found["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, one thread"
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items() if version)
    return f"{where}; Python {machine['python']}; {versions}"


def draw(found, path):
    """Horizontal bars for each workload: how long an update takes, as a part of the plain loop's."""
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
    axis.set_title(" ")  # room for the text above, which begins left of the axis
    axis.margins(x=0.1, y=0.02)
    axis.set_facecolor(PAPER)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labelbottom=False, colors=INK)
    for label, each in zip(axis.get_yticklabels(), own, strict=True):
        label.set_fontweight("bold" if each else "normal")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the JSON files")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="the folder for the pictures")
    arguments = parser.parse_args()
    measured = results(arguments.results)
    if not measured:
        parser.error(f"nothing was measured in {arguments.results}: run python -m benchmarks.fit, or benchmarks.gpu")
    for device, found in measured.items():
        path = arguments.pictures / f"speed-{'cpu' if device == 'cpu' else 'gpu'}.svg"
        draw(found, path)
        print(f"{path}\n\n{caption(found)}\n\n{table(found)}\n")
        for work in found["workloads"]:
            for line in verdicts(found["workloads"][work]["contenders"], device, work):
                print(f"{work}: {line}")
        print()


if __name__ == "__main__":
    main()
