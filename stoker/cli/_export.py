"""`stoker export RUN -o FILE`: a run's numbers as CSV, Parquet or JSON."""

from stoker.cli._screen import screen
from stoker.cli._show import find
from stoker.record import Follower, Source, export


def main(name: str, path: str, *, source: Source, long: bool) -> None:
    """Writes the file, and says what the reading had to leave out."""
    run = Follower(find(name))
    written = export(run, path, source=source, long=long)
    console = screen()
    if run.problem:
        console.print(run.problem, style="yellow", markup=False)
    console.print(f"{written} has the numbers of {run.path}", markup=False)
