"""Say what to train; `fit` says on what and for how long."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.distributed import Parallel, as_parallel
from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.learner._explain import explain
from stoker.learner._fitted import Fitted
from stoker.learner._outcome import outcome_of
from stoker.learner._spec import Spec
from stoker.learner._start import start_fit
from stoker.learner._wish import Wish
from stoker.optim import AdamW
from stoker.steps import LossFunction


class Learner:
    """A model and how to train it, as a value: fitting does not change it.

    >>> x = torch.randn(64, 3)
    >>> learner = Learner(nn.Linear, loss=nn.MSELoss(), lr=1e-2, seed=0).hparams(in_features=3, out_features=1)
    >>> fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, batch_size=16, show=False)
    >>> fitted.epochs, fitted.updates
    (2, 8)

    - `model`: a class, of which every fit makes a fresh model with the `hparams`; or an instance, trained in place.
    - `loss`: any function of (predictions, targets). None where the model has a `train_step(batch)` that returns a
      loss or an output with a `.loss`, or yields `Objective`s.
    - `optimizer`: a config of `stoker.optim`, or a mapping of selectors to configs; `lr`: a number, a schedule, or a
      mapping of selectors to these. The first match wins.
    - `accumulate`: batches to an update. `clip_norm`, `clip_value`: limits on the gradients of an update.
    - `precision`: "fp32" is whatever PyTorch is set to; "tf32", "bf16" and "fp16" hold inside `fit` only.
    - `ema`: the decay of a running average of the weights, which is then what validation judges and `fit` gives.
    - `device`: found where it is not named; the model is moved back afterwards.
    - `seed`: of all random numbers of a fit; the global ones are as before afterwards. torch has one generator for all
      threads: seeded fits at the same time belong into processes of their own.
    - `on_nan`: a loss or gradient that is not finite never reaches the weights; "stop" raises, "skip" goes on.
    - `compile`: the whole training step, optimizer and metrics included, as one compiled program. It takes seconds to
      minutes to make, and rounds otherwise than the step as it is written. `explain` says what else there is to know.
    - `parallel`: how several processes train together, where torchrun has started the script several times. "ddp" is
      what "auto" means, unless the model is distributed already; "fsdp" keeps a shard of the model on each. Nothing
      else in the script changes, and what comes out does not depend on how many there are.
    """

    __slots__ = ("_spec",)

    def __init__(
        self,
        model: nn.Module | Callable[..., nn.Module],
        *,
        loss: LossFunction | None = None,
        optimizer: Any = None,
        lr: Any = 1e-3,
        metrics: Sequence[Any] = (),
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32",
        ema: float | None = None,
        device: torch.device | str | None = None,
        seed: int | None = None,
        on_nan: Literal["stop", "skip"] = "stop",
        compile: bool = False,
        parallel: Literal["auto", "ddp", "fsdp"] | Parallel = "auto",
    ) -> None:
        self._spec = Spec(
            model=model,
            loss=loss,
            optimizer=AdamW() if optimizer is None else optimizer,
            lr=lr,
            metrics=metrics,
            clip_norm=clip_norm,
            clip_value=clip_value,
            accumulate=accumulate,
            precision=precision,
            ema=ema,
            device=device,
            seed=seed,
            on_nan=on_nan,
            compile=compile,
            parallel=as_parallel(parallel),
        )

    def hparams(self, **hparams: Any) -> "Learner":
        """The same learner with these arguments for the model's class, added to those it has."""
        if isinstance(self._spec.model, nn.Module):
            raise InvalidArgument(
                "the model is an instance already: hparams are for a class, Learner(Net).hparams(...)"
            )
        return _of(replace(self._spec, hparams={**self._spec.hparams, **hparams}))

    def fit(
        self,
        train: Any,
        *,
        valid: Any = None,
        epochs: int | None = None,
        updates: int | None = None,
        minutes: float | None = None,
        batch_size: int | None = None,
        callbacks: Sequence[Callback] = (),
        run: str | Path | None = None,
        config: Any = None,
        validate_every: Literal["epoch"] | int = "epoch",
        keep: Literal["best", "last"] = "best",
        checkpoint: Checkpoint | bool | None = None,
        resume: bool | Literal["force"] = False,
        show: bool = True,
    ) -> Fitted:
        """Trains until one of `epochs`, `updates` or `minutes` is over, or something says stop.

        `train` is whatever `data.Loader` takes (shuffled, in batches of `batch_size`, 32 where it is not said), or a
        `Loader`. `valid` is the same, a fraction of the training data, or several sets by name. `validate_every` is
        "epoch" or a number of updates. With `run`, a directory of that name records the fit, and `config` beside it.
        The best weights by the validation loss are what `fitted.model` has, unless `keep="last"`.

        A run is saved as `checkpoint` says (every epoch, where it says nothing; never, where it is False), and when it
        ends in any way that leaves it the time. `resume=True` goes on from its newest whole checkpoint to the bits that
        it would have come to, starts it where there is none, and gives back what came out where it is over already.
        What has to be the same (model, optimizer, data, seed) is checked; `resume="force"` goes on with what differs.
        """
        wish = Wish(
            *(train, valid, epochs, updates, minutes, batch_size),
            *(callbacks, run, config, validate_every, keep, checkpoint, resume),
        )
        prepared = start_fit(self._spec, wish, show=show)
        return Fitted(outcome_of(prepared), prepared)

    def explain(self, train: Any, **fit: Any) -> str:
        """What `fit` with these arguments would do, and why; nothing is trained, and the model stays as it is."""
        fit.pop("show", None)
        for name in fit:
            if name not in (known := [each.name for each in fields(Wish)]):
                raise WrongType(f"explain takes the arguments of fit, and {name!r} is none{did_you_mean(name, known)}")
        return explain(self._spec, Wish(train, **fit))

    def __repr__(self) -> str:
        model = self._spec.model
        name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", repr(model))
        told: Mapping[str, Any] = {
            "hparams": dict(self._spec.hparams) or None,
            "optimizer": self._spec.optimizer,
            "lr": self._spec.lr,
        }
        return (
            f"Learner({', '.join([name, *(f'{key}={value!r}' for key, value in told.items() if value is not None)])})"
        )


def _of(spec: Spec) -> Learner:
    learner = Learner.__new__(Learner)
    learner._spec = spec
    return learner
