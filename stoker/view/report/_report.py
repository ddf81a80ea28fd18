"""A report on a run, as one file that a colleague can open."""

import os
from pathlib import Path

from stoker.errors import BadFile
from stoker.record import Record, Run
from stoker.view.report._curves import curves
from stoker.view.report._findings import findings
from stoker.view.report._judged import Judged
from stoker.view.report._markup import section
from stoker.view.report._page import page
from stoker.view.report._readable import Readable, as_readable
from stoker.view.report._sections import config, environment, epochs, heading, matrices_of, numbers
from stoker.view.report._told import checkpoints, log, said


def report_html(run: Readable | Record | Run | str | os.PathLike[str], judgement: Judged | None = None) -> str:
    """A run as one HTML file: its state, curves, best epoch, numbers, config, environment and warnings.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> "valid/loss" in report_html(record)
    True

    `judgement` (see `judged`) adds what a data set says of the model. Nothing in the file is loaded from elsewhere, and
    nothing in it runs.
    """
    told = as_readable(run)
    answers = findings(judgement) if judgement is not None else ""
    own = "" if judgement is not None and judgement.confusion is not None else matrices_of(told)
    return page(
        told.name,
        heading(told),
        section("Curves", curves(told)),
        numbers(told),
        answers,
        own,
        epochs(told),
        config(told),
        environment(told),
        said(told),
        checkpoints(told),
        log(told),
    )


def write_report(path: str | os.PathLike[str], html: str) -> Path:
    """Writes a page to a file, and makes the folders on the way to it."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise BadFile(f"the report can't be written to {str(path)!r}: {error.strerror or error}") from error
    return path
