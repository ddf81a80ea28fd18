"""All errors that a user of stoker can cause.

StokerError
├── InvalidArgument (ValueError)        a value that is not allowed
├── WrongType (TypeError)               an object of the wrong type
├── NoSuchParameter (KeyError, ValueError)   a selector that matches no parameter
├── UnmatchedParameter (ValueError)     a trainable parameter that no selector of a mapping matches
├── NotDifferentiable (RuntimeError)    a loss that has no gradients
├── GradientsConsumed (RuntimeError)    gradients that were already used
├── UnsupportedGradient (RuntimeError)  a kind of gradient that an optimizer does not support
├── StateMismatch (ValueError)          a saved state that does not match the object it is loaded into
├── BadFile (ValueError)                a file that is damaged or has other content than expected
│   └── MissingFile (FileNotFoundError)    a file that does not exist
├── BadData (ValueError)                data that cannot be loaded as samples
├── SampleFailed (RuntimeError)         an exception of a dataset that cannot be sent from its worker process
├── WorkerDied (RuntimeError)           a data worker process that ended unexpectedly
├── PeerFailed (RuntimeError)           another rank that failed or does not answer
├── UnknownHook (AttributeError)        a method of a callback that is named like a hook and is not one
├── NoSuchMetric (KeyError, ValueError) a metric that does not exist
├── NotFinite (ArithmeticError)         a loss or gradient that is NaN or infinite
├── RunExists (FileExistsError)         a directory that already contains a run
├── CheckpointFailed (OSError)          a checkpoint that could not be written, or an old one that could not be deleted
├── ConfigError (ValueError)            a field of a config that is unknown, missing or of the wrong type
└── MissingExtra (ImportError)          an optional dependency that is not installed

Each inherits from the built-in exception in parentheses, so that `except ValueError` works too.
"""

import difflib
from collections.abc import Iterable
from itertools import islice

__all__ = [
    "BadData",
    "BadFile",
    "CheckpointFailed",
    "ConfigError",
    "GradientsConsumed",
    "InvalidArgument",
    "MissingExtra",
    "MissingFile",
    "NoSuchMetric",
    "NoSuchParameter",
    "NotDifferentiable",
    "NotFinite",
    "PeerFailed",
    "RunExists",
    "SampleFailed",
    "StateMismatch",
    "StokerError",
    "UnknownHook",
    "UnmatchedParameter",
    "UnsupportedGradient",
    "WorkerDied",
    "WrongType",
]


class StokerError(Exception):
    """Base class of all errors that stoker raises on purpose."""

    def __str__(self) -> str:  # KeyError would show the repr of the text
        return str(self.args[0]) if self.args else ""


class InvalidArgument(StokerError, ValueError):
    """A value is not allowed; the text says which values are."""


class WrongType(StokerError, TypeError):
    """An object has the wrong type; the text says what is expected."""


class NoSuchParameter(StokerError, KeyError, ValueError):
    """A selector (a name, pattern, module or parameter) matches no parameter."""


class UnmatchedParameter(StokerError, ValueError):
    """No selector of a mapping matches a trainable parameter."""


class NotDifferentiable(StokerError, RuntimeError):
    """A loss has no gradients; the text says why."""


class GradientsConsumed(StokerError, RuntimeError):
    """Gradients were already used; the text says by what."""


class UnsupportedGradient(StokerError, RuntimeError):
    """An optimizer does not support a kind of gradient, such as a sparse one."""


class StateMismatch(StokerError, ValueError):
    """A saved state does not match the object it is loaded into; the text lists the differences."""


class BadFile(StokerError, ValueError):
    """A file is damaged or has other content than expected."""


class MissingFile(BadFile, FileNotFoundError):
    """A file does not exist; the text says where it was expected."""


class BadData(StokerError, ValueError):
    """Data cannot be loaded as samples."""


class SampleFailed(StokerError, RuntimeError):
    """A dataset raised an exception that cannot be sent from its worker process; the text describes it."""


class WorkerDied(StokerError, RuntimeError):
    """A data worker process ended unexpectedly."""


class PeerFailed(StokerError, RuntimeError):
    """Another rank failed or does not answer; the text says which one, and its error."""


class UnknownHook(StokerError, AttributeError):
    """A method of a callback is named like a hook and is not one."""


class NoSuchMetric(StokerError, KeyError, ValueError):
    """A metric does not exist; the text lists those that do."""


class NotFinite(StokerError, ArithmeticError):
    """A loss or gradient is NaN or infinite; the text says where it came from."""

    def __init__(self, text: str, *, position: tuple[int, int] | None = None, on_every_rank: bool = False) -> None:
        super().__init__(text)
        self.position = position  # epoch and batch, if it was noticed in a later batch
        self.on_every_rank = on_every_rank  # every rank raises it at the same place


class RunExists(StokerError, FileExistsError):
    """A directory already contains a run."""


class CheckpointFailed(StokerError, OSError):
    """A checkpoint could not be written, or an old one could not be deleted; the text names the last complete one."""


class ConfigError(StokerError, ValueError):
    """A field of a config is unknown, missing or of the wrong type."""


class MissingExtra(StokerError, ImportError):
    """An optional dependency is not installed; the text says how to install it."""


def did_you_mean(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """Returns a hint to append to an error message, or "" if no known word is similar.

    >>> did_you_mean("clasifier", ["backbone", "classifier"])
    "; did you mean 'classifier'?"
    """
    # A word of a file may be long, and the words many; difflib's time grows with both.
    words = list(dict.fromkeys(name for name in islice(known, 2000) if len(name) <= 200))
    similar = difflib.get_close_matches(word[:200], words, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in similar)}?" if similar else ""
