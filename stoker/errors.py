"""Every error that a user can cause, as one family.

StokerError
├── InvalidArgument (ValueError)        a value that can't be used
├── WrongType (TypeError)               a thing of the wrong kind
├── NoSuchParameter (KeyError, ValueError)   a name, pattern or module that chooses nothing
├── UnmatchedParameter (ValueError)     a trainable parameter that no pattern of a mapping chooses
├── NotDifferentiable (RuntimeError)    a loss that gradients can't be taken of
├── GradientsConsumed (RuntimeError)    gradients that something else has used up
├── UnsupportedGradient (RuntimeError)  a kind of gradient that an optimizer can't take
├── StateMismatch (ValueError)          a saved state and a model that don't fit
├── BadFile (ValueError)                a file that is torn, changed, or not what it should be
│   └── MissingFile (FileNotFoundError)    a file that is not there
├── BadData (ValueError)                data that can't be loaded as samples
├── SampleFailed (RuntimeError)         a sample whose own exception could not be brought over from its worker
├── WorkerDied (RuntimeError)           a loading process that went away
├── PeerFailed (RuntimeError)           another rank that failed, or can't be reached any more
├── UnknownHook (AttributeError)        a method of a callback that is called like a milestone and is none
├── NoSuchMetric (KeyError, ValueError) a name that no number has
├── NotFinite (ArithmeticError)         a loss or gradient that is NaN or infinite
├── RunExists (FileExistsError)         a directory that already holds a run
├── CheckpointFailed (OSError)          a checkpoint that could not be written, or an old one not deleted
├── ConfigError (ValueError)            a field of a config that is unknown, missing or of the wrong type
└── MissingExtra (ImportError)          an optional dependency that is not installed

Each is also the built-in error that people catch for such a thing.
"""

import difflib
from collections.abc import Iterable


class StokerError(Exception):
    """Any error that stoker raises on purpose."""

    def __str__(self) -> str:  # KeyError would show the text as a repr
        return str(self.args[0]) if self.args else ""


class InvalidArgument(StokerError, ValueError):
    """A value that can't be used; the text says which would be."""


class WrongType(StokerError, TypeError):
    """A thing of the wrong kind; the text says what was expected."""


class NoSuchParameter(StokerError, KeyError, ValueError):
    """A name, pattern, module or parameter that chooses nothing."""


class UnmatchedParameter(StokerError, ValueError):
    """A trainable parameter that no pattern of a mapping chooses."""


class NotDifferentiable(StokerError, RuntimeError):
    """A loss that gradients can't be taken of; the text says why."""


class GradientsConsumed(StokerError, RuntimeError):
    """Gradients that something else has used up; the text says what."""


class UnsupportedGradient(StokerError, RuntimeError):
    """A kind of gradient (sparse, say) that an optimizer can't take."""


class StateMismatch(StokerError, ValueError):
    """A saved state and a model that don't fit; the text lists what differs."""


class BadFile(StokerError, ValueError):
    """A file that is torn, changed, or not what it should be."""


class MissingFile(BadFile, FileNotFoundError):
    """A file that is not there; the text says where it was looked for."""


class BadData(StokerError, ValueError):
    """Data that can't be loaded as samples."""


class SampleFailed(StokerError, RuntimeError):
    """A sample whose own exception could not be brought over from its worker."""


class WorkerDied(StokerError, RuntimeError):
    """A loading process that went away."""


class PeerFailed(StokerError, RuntimeError):
    """Another rank that failed, or can't be reached any more; the text says which and what it said."""


class UnknownHook(StokerError, AttributeError):
    """A method of a callback that is called like a milestone and is none."""


class NoSuchMetric(StokerError, KeyError, ValueError):
    """A name that no number has; the text says which there are."""


class NotFinite(StokerError, ArithmeticError):
    """A loss or gradient that is NaN or infinite; the text says where it came from."""


class RunExists(StokerError, FileExistsError):
    """A directory that already holds a run."""


class CheckpointFailed(StokerError, OSError):
    """A checkpoint that could not be written, or an old one not deleted; the text says which is still whole."""


class ConfigError(StokerError, ValueError):
    """A field of a config that is unknown, missing or of the wrong type."""


class MissingExtra(StokerError, ImportError):
    """An optional dependency that is not installed; the text says how to get it."""


def did_you_mean(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """A hint to append to an error's text: `did_you_mean("clasifier", names)`, empty where nothing is near."""
    near = difflib.get_close_matches(word, list(dict.fromkeys(known)), n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
