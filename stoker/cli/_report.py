"""`stoker report RUN… -o FILE`: a run, or several over each other, as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from stoker.cli._screen import screen
from stoker.cli._show import find
from stoker.errors import InvalidArgument
from stoker.view.report import compare_html, report_html, write_report


def main(names: Sequence[str], output: str) -> None:
    """Writes the page, and says where it is."""
    if Path(output).suffix.lower() not in ("", ".html", ".htm"):
        raise InvalidArgument(f"a report is a web page; -o {output} should end in .html")
    runs = [find(name) for name in names]
    html = report_html(runs[0]) if len(runs) == 1 else compare_html(*runs)
    path = write_report(output, html)
    screen().print(f"{path}: {len(html.encode()) / 1000:,.0f} kB, one file that any browser opens", markup=False)
