"""All errors that a user of stoker can cause.

```text
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
```

Each inherits from the built-in exception in parentheses, so that `except ValueError` works too.
"""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
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
    """A value is not allowed; the text says which values are.

    *Cause:* an argument, or two that exclude each other. *Remedy:* the text names the argument, what was given and what
    is allowed, often with the line to write instead.
    """


class WrongType(StokerError, TypeError):
    """An object has the wrong type; the text says what is expected.

    *Cause:* usually something one step too early or too late, such as a class instead of an object or a function that
    was called. *Remedy:* pass what the text asks for.
    """


class NoSuchParameter(StokerError, KeyError, ValueError):
    """A selector (a name, pattern, module or parameter) matches no parameter.

    *Cause:* a misspelt name, or a name of another model. *Remedy:* the text suggests similar names;
    `dict(model.named_parameters())` lists all, and `stoker.select(model, "layer*")` shows what a selector matches.
    """


class UnmatchedParameter(StokerError, ValueError):
    """No selector of a mapping matches a trainable parameter.

    *Cause:* a mapping of optimizers or learning rates that leaves parameters out. *Remedy:* add `"*"` as the last
    entry, or freeze these parameters with `stoker.freeze`.
    """


class NotDifferentiable(StokerError, RuntimeError):
    """A loss has no gradients; the text says why.

    *Cause:* the loss was computed under `torch.no_grad()`, from detached tensors, or from no trainable parameter.
    *Remedy:* compute it from the model's output; unfreeze what should be trained.
    """


class GradientsConsumed(StokerError, RuntimeError):
    """Gradients were already used; the text says by what.

    *Cause:* a second `step` with the same gradients. *Remedy:* call `stoker.backward` again; for several optimizers,
    divide the gradients with `grads.take(...)` before the first step.
    """


class UnsupportedGradient(StokerError, RuntimeError):
    """An optimizer does not support a kind of gradient, such as a sparse one.

    *Cause:* sparse gradients of an `nn.Embedding(sparse=True)`, or an optimizer that needs a closure. *Remedy:* an
    algorithm that supports them, or dense gradients.
    """


class StateMismatch(StokerError, ValueError):
    """A saved state does not match the object it is loaded into; the text lists the differences.

    *Cause:* another model, loss, optimizer, seed or data set than in the run that is resumed or the file that is
    loaded. *Remedy:* restore what differs, or start a new run; `fitted.continue_` trains on with other settings.
    """


class BadFile(StokerError, ValueError):
    """A file is damaged or has other content than expected.

    *Cause:* a transfer or disk that changed a file, an edit, or a file of another kind. *Remedy:* `stoker show RUN
    --verify` names damaged checkpoints; a resume uses the newest intact one.
    """


class MissingFile(BadFile, FileNotFoundError):
    """A file does not exist; the text says where it was expected.

    *Cause:* a wrong path, or a run that has not saved yet. *Remedy:* check the path; `stoker runs` lists the runs.
    """


class BadData(StokerError, ValueError):
    """Data cannot be loaded as samples.

    *Cause:* columns of different lengths, samples that can't be stacked, or a source that yields nothing. *Remedy:* the
    text names the column or sample; samples of different sizes need a `collate_fn`.
    """


class SampleFailed(StokerError, RuntimeError):
    """A dataset raised an exception that cannot be sent from its worker process; the text describes it.

    *Cause:* your dataset's `__getitem__` or transform. *Remedy:* read that sample in the main process, with
    `num_workers=0`, to get the original exception.
    """


class WorkerDied(StokerError, RuntimeError):
    """A data worker process ended unexpectedly.

    *Cause:* most often the system killed it for memory, or a library crashed. *Remedy:* fewer workers or smaller
    samples; in a container, a larger `/dev/shm`.
    """


class PeerFailed(StokerError, RuntimeError):
    """Another rank failed or does not answer; the text says which one, and its error.

    *Cause:* an exception, a kill or a lost connection on that rank. *Remedy:* look at the rank that is named; the
    others only report it. A launcher with restarts and `resume=True` continues the run.
    """


class UnknownHook(StokerError, AttributeError):
    """A method of a callback is named like a hook and is not one.

    *Cause:* a misspelt hook, which would never be called. *Remedy:* the name that the text suggests, or a method that
    does not start with `on_`.
    """


class NoSuchMetric(StokerError, KeyError, ValueError):
    """A metric does not exist; the text lists those that do.

    *Cause:* a misspelt name in `monitor=`, `history[...]` or a callback, or a metric that is measured `on="valid"`
    only. *Remedy:* one of the names that the text lists.
    """


class NotFinite(StokerError, ArithmeticError):
    """A loss or gradient is NaN or infinite; the text says where it came from.

    *Cause:* a NaN in the data, a learning rate that is too high, an overflow in 16 bits, or a division or logarithm of
    0. The weights are those before the bad batch. *Remedy:* the text names the first module, parameter or input that is
    not finite; then a lower `lr`, `clip_norm=1.0`, `precision="bf16"`, or clean data. `on_nan="skip"` leaves such
    updates out.
    """

    def __init__(self, text: str, *, position: tuple[int, int] | None = None, on_every_rank: bool = False) -> None:
        super().__init__(text)
        self.position = position  # epoch and batch, if it was noticed in a later batch
        self.on_every_rank = on_every_rank  # every rank raises it at the same place


class RunExists(StokerError, FileExistsError):
    """A directory already contains a run.

    *Cause:* a script that is started twice with the same `run=`. *Remedy:* `resume=True` to continue it, or another
    directory.
    """


class CheckpointFailed(StokerError, OSError):
    """A checkpoint could not be written, or an old one could not be deleted; the text names the last complete one.

    *Cause:* a full disk, a quota, missing rights or a lost mount. *Remedy:* make room and start again with
    `resume=True`.
    """


class ConfigError(StokerError, ValueError):
    """A field of a config is unknown, missing or of the wrong type.

    *Cause:* a config file of another version, or a typing error. *Remedy:* the text names the field, what was given and
    what is expected.
    """


class MissingExtra(StokerError, ImportError):
    """An optional dependency is not installed; the text says how to install it.

    *Cause:* a feature that needs another package, such as `stoker ui`. *Remedy:* the command in the text, for example
    `pip install 'stoker[ui]'`.
    """


def did_you_mean(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """Returns a hint to append to an error message, or "" if no known word is similar.

    >>> did_you_mean("clasifier", ["backbone", "classifier"])
    "; did you mean 'classifier'?"
    """
    # A word of a file may be long, and the words many; difflib's time grows with both.
    words = list(dict.fromkeys(name for name in islice(known, 2000) if len(name) <= 200))
    similar = difflib.get_close_matches(word[:200], words, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in similar)}?" if similar else ""


@contextlib.contextmanager
def explain_missing(text: str) -> Iterator[None]:
    """Turns an `ImportError` inside the block into a `MissingExtra` that says what to install.

    >>> with explain_missing('plot needs matplotlib: pip install "stoker[plot]"'):
    ...     import json
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(text) from error
