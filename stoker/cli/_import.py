"""`stoker import LOG -o RUN`: the log of Lightning's CSVLogger, or one for TensorBoard, as a run."""

from stoker.cli._screen import screen
from stoker.errors import RunExists
from stoker.record import import_log


def main(source: str, path: str, *, rename: bool) -> None:
    """Makes the run, and says what is in it and how to look at it."""
    try:
        run = import_log(source, path, rename=rename)
    except RunExists:
        raise RunExists(
            f"{path!r} already holds a run, and an import makes a new one; give another path with -o"
        ) from None
    console = screen()
    for event in run.record.events_of("warning"):
        console.print(event.text, style="yellow", markup=False)
    found = run.summary()
    console.print(
        f"{run.path}: {found['epochs']} epochs, {found['updates']:,} updates, {', '.join(run.record.columns)}",
        markup=False,
    )
    console.print(f"stoker show {run.path} shows it", style="dim", markup=False)
