"""Draws docs/pictures/schedules.svg and metrics.svg, the pictures of the catalogues in the reference."""

from pathlib import Path

import matplotlib.figure
import torch

from stoker import ClassificationOutput, metrics, schedule

PICTURES = Path(__file__).resolve().parent / "pictures"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#808080"  # distinguishable for colour-blind people, and on light and dark

SCHEDULES = {
    "constant(1.0)": schedule.constant(1.0),
    "cosine(1.0, warmup=0.1)": schedule.cosine(1.0, warmup=0.1),
    "linear(1.0, 0.0)": schedule.linear(1.0, 0.0),
    "polynomial(1.0, power=3)": schedule.polynomial(1.0, power=3),
    "exponential(1.0, end=0.01)": schedule.exponential(1.0, end=0.01),
    "one_cycle(1.0)": schedule.one_cycle(1.0),
    "warmup_stable_decay(1.0,\nwarmup=0.1, decay=0.3)": schedule.warmup_stable_decay(1.0, warmup=0.1, decay=0.3),
    "inverse_sqrt(1.0, warmup=0.1)": schedule.inverse_sqrt(1.0, warmup=0.1),
    "noam(512, warmup=0.1)": schedule.noam(512, warmup=0.1),
    "step(1.0, every=250,\ngamma=0.5)": schedule.step(1.0, every=250, gamma=0.5),
    "multistep(1.0,\nmilestones=[500, 800], gamma=0.3)": schedule.multistep(1.0, milestones=[500, 800], gamma=0.3),
    "warmup(1.0, updates=0.2)\n.then(cosine(1.0), at=0.5)": schedule.warmup(1.0, updates=0.2).then(
        schedule.cosine(1.0), at=0.5
    ),
}


def draw_schedules() -> None:
    """One small chart for each schedule over a fit of 1000 updates."""
    figure = matplotlib.figure.Figure(figsize=(10, 6.6), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(3, 4).flat, SCHEDULES.items(), strict=True):
        curve = curve.with_updates(1000)
        axes.plot([curve(update) for update in range(1000)], color=BLUE, linewidth=2)
        axes.set_title(name, fontsize=9, color=GREY, family="monospace")
        tidy(axes)
    save(figure, "schedules.svg")


def draw_metrics() -> None:
    """What metrics of a classifier with two classes say about scores that overlap more and more."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.arange(4000) % 4 == 0).long()  # one of four is positive
    noise = torch.randn(4000, generator=generator)
    overlaps = torch.linspace(0, 3, 25)
    kinds = [metrics.Accuracy(), metrics.Precision(), metrics.Recall(), metrics.FBeta(), metrics.AUROC()]
    lines = {metric.name: [] for metric in kinds}
    for overlap in overlaps:
        score = 2 * targets - 1.6 + overlap * noise  # careful: few false alarms
        logits = torch.stack((torch.zeros_like(score), score), 1)
        output = ClassificationOutput(torch.tensor(0.0), logits, targets)
        for metric in kinds:
            value = metric.compute(metric.update(metric.init(torch.device("cpu")), output))
            lines[metric.name].append(value if isinstance(value, float) else next(iter(value.values())))
    figure = matplotlib.figure.Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, values), color in zip(lines.items(), (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00"), strict=True):
        axes.plot(overlaps, values, color=color, linewidth=2, label=name)
    axes.set_xlabel("noise of the scores; one of four samples is positive", color=GREY, fontsize=9)
    axes.legend(frameon=False, fontsize=9, labelcolor=GREY)
    tidy(axes, x=True)
    save(figure, "metrics.svg")


def tidy(axes, x: bool = False) -> None:
    """Grey axes without a frame, readable on light and dark pages."""
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, labelsize=7, labelbottom=x)


def save(figure, name: str) -> None:
    """Writes an SVG without a background, and without the time of drawing: it changes only if its content does."""
    matplotlib.rcParams["svg.hashsalt"] = "stoker"
    figure.savefig(PICTURES / name, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw_schedules()
    draw_metrics()
