"""`Learner`: what to train. `fit` says on which data and for how long."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stoker._text import html_table, html_text, shorten
from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.distributed import Parallel
from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.learner._arguments import (
    FitArguments,
    check_keywords,
    check_keywords_of_init,
    check_learner,
    describe_model,
    hparams_of,
)
from stoker.learner._fitted import Fitted
from stoker.learner._run import run_fit
from stoker.optim import AdamW
from stoker.steps import Columns, LossFunction

Recomputed = type[nn.Module] | nn.Module | str | Sequence["Recomputed"]


@check_keywords_of_init
@dataclass(frozen=True, repr=False, eq=False)
class Learner:
    """A model and how to train it; `fit` does not change it.

    >>> x = torch.randn(64, 3)
    >>> learner = Learner(nn.Linear, loss=nn.MSELoss(), lr=1e-2, seed=0).hparams(in_features=3, out_features=1)
    >>> fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, batch_size=16, show=False)
    >>> fitted.epochs, fitted.updates
    (2, 8)

    - `model`: a class, of which every fit creates a new model with the `hparams`; or an instance, trained in place.
    - `loss`: any function of (predictions, targets). `None` if a step or the model's `forward` computes the loss.
    - `step`: a function of (model, batch) that computes the loss; by default the model's method `train_step(batch)`, if
      it has one. It returns the loss, an output with a `.loss` or a mapping with "loss", or yields `Objective`s.
      `valid_step` is the same for validation (by default what training uses), and `predict_step` returns predictions.
    - `optimizer`: a config of `stoker.optim` (`None`: AdamW), or a mapping of selectors to configs. `lr`: a number, a
      schedule (`schedule.cosine(3e-3, warmup=0.05)` is as long as the fit), a function of the update number, or a
      mapping of selectors to these. The first matching selector wins.
    - `accumulate`: the number of batches per update. `clip_norm`, `clip_value`: limits for the gradients of an update.
    - `precision`: "fp32" is whatever PyTorch is set to; "tf32", "bf16" and "fp16" apply inside `fit` only.
    - `ema`: the decay of an exponential moving average of the weights, which validation uses and `fit` returns. It
      warms up: update n has the decay (1 + n) / (10 + n) as long as that is smaller.
    - `device`: by default a GPU if there is one. The model is moved back afterwards.
    - `seed`: for all random numbers of a fit; the global generators are restored afterwards. torch has one generator
      for all threads, so seeded fits that run at the same time need their own processes.
    - `deterministic`: uses deterministic kernels, inside `fit` only: `torch.use_deterministic_algorithms`, and cuDNN's.
    - `on_nan`: a loss or gradient that is not finite never reaches the weights; "stop" raises, "skip" skips the batch.
    - `compile`: compiles the whole training step, with optimizer and metrics. That takes seconds to minutes, and rounds
      differently from the eager step. `explain` describes the rest.
    - `recompute`: modules that keep only their inputs in the forward pass, and compute their activations again in the
      backward pass, which needs less memory and more time: a class, a module, a name or glob, or several of these.
    - `parallel`: how several processes train together, if torchrun has started the script several times. "auto" is
      "ddp", unless the model is already distributed; "fsdp" keeps a shard of the model on each process. Nothing else
      in the script changes. Up to rounding the result does not depend on the number of processes, unless the model
      draws random numbers (dropout) or normalises over a batch.
    - `inputs`, `target`, `weight`: the columns of a batch, by key or by place, if they are not (inputs…, target) or a
      mapping with the names of `forward`'s arguments. The inputs are passed to `forward` in this order.
    """

    model: nn.Module | Callable[..., nn.Module]
    _: KW_ONLY
    loss: LossFunction | None = None
    optimizer: Any = None
    lr: Any = 1e-3
    metrics: Sequence[Any] = ()
    step: Callable[[Any, Any], Any] | None = None
    valid_step: Callable[[Any, Any], Any] | None = None
    predict_step: Callable[[Any, Any], Any] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    ema: float | None = None
    device: torch.device | str | None = None
    seed: int | None = None
    deterministic: bool = False
    on_nan: Literal["stop", "skip"] = "stop"
    compile: bool = False
    recompute: Recomputed | None = None
    parallel: Literal["auto", "ddp", "fsdp"] | Parallel = "auto"
    inputs: Columns | None = None
    target: Columns | None = None
    weight: str | int | None = None

    def __post_init__(self) -> None:
        check_learner(self)
        if self.optimizer is None:
            object.__setattr__(self, "optimizer", AdamW())

    def hparams(self, **hparams: Any) -> "Learner":
        """Returns a learner with these arguments for the class of its model, added to those it has."""
        if isinstance(self.model, nn.Module):
            raise InvalidArgument("hparams are for a model class, Learner(Net).hparams(...); this model is an instance")
        return replace(self, model=partial(self.model, **hparams))

    @check_keywords
    def fit(
        self,
        train: Any,
        *,
        valid: Any = None,
        epochs: int | None = None,
        updates: int | None = None,
        minutes: float | None = None,
        batch_size: int | None = None,
        micro_batch: int | Literal["auto"] | None = None,
        callbacks: Sequence[Callback] = (),
        run: str | Path | None = None,
        config: Any = None,
        validate_every: Literal["epoch"] | int = "epoch",
        keep: Literal["best", "last"] = "best",
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        checkpoint: Checkpoint | bool | None = None,
        resume: bool | Literal["force"] = False,
        system_metrics: bool = True,
        show: bool = True,
    ) -> Fitted:
        """Trains until a limit (`epochs`, `updates` or `minutes`), a callback or a signal stops it.

        `train` is anything that `data.Loader` takes (it is shuffled, with a `batch_size` of 32 by default), or a
        `Loader`. `valid` is the same, a fraction of the training data, or a mapping of names to validation sets.
        `validate_every` is "epoch" or a number of updates. `run` is a directory that records the fit and its `config`.

        `fitted.model` gets the best weights, or the last ones with `keep="last"`. The best are those with the lowest
        loss on the first validation set; `monitor="valid/accuracy"` (or a metric of any other set, or "train/loss")
        names another metric. Metrics know whether less or more is better; `mode` ("min" or "max") decides otherwise.
        Early stopping, plateaus and reports follow the same metric.

        `micro_batch` is how many samples are computed at once, if a whole batch does not fit into memory: the gradients
        of the micro-batches add up to those of the batch. With "auto" it is the whole batch until memory runs out;
        then it is halved, as often as needed. With several processes it counts the samples of one process.

        `checkpoint` says when a run is saved: by default at its beginning, after every epoch and at its end; with False
        never. `resume=True` continues a run from its newest complete checkpoint, to the same bits as without the
        interruption; it starts a run that does not exist, and returns the result of one that is finished. Model,
        optimizer, data and seed must be the same; with `resume="force"` all but the model's parameters may differ.

        A run also records how busy processor, memory and GPU are, every five seconds, unless `system_metrics=False`.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "show")}
        return Fitted.of(run_fit(self, FitArguments(**arguments), show=show))

    def explain(self, train: Any, **fit: Any) -> str:
        """Describes what `fit` with these arguments would do, and why; it trains nothing and changes nothing."""
        fit.pop("show", None)
        parameters = inspect.signature(Learner.fit).parameters
        defaults = {name: each.default for name, each in parameters.items() if name not in ("self", "train", "show")}
        for name in fit:
            if name not in defaults:
                hint = did_you_mean(name, defaults)
                raise WrongType(f"explain takes the arguments of fit; {name!r} is not one{hint}")
        from stoker.learner._explain import explain

        return explain(self, FitArguments(train, **{**defaults, **fit}))

    def __repr__(self) -> str:
        model = describe_model(self.model) if hparams_of(self.model) else describe_model(self.model).removesuffix("()")
        return f"Learner({model}, optimizer={self.optimizer!r}, lr={self.lr!r})"

    def _repr_html_(self) -> str:
        """What the learner was given, without what has its default, above the modules of the model."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "model"}
        defaults = {field.name: field.default for field in fields(self) if field.name not in ("optimizer", "lr")}
        rows = []
        for name, value in given.items():
            if name not in defaults or not (value is defaults[name] or repr(value) == repr(defaults[name])):
                parts = value if isinstance(value, list | tuple) else [value]
                rows.append((name, ", ".join(map(_short_text, parts))))
        return f"<div><b>Learner</b>{html_table((), rows)}{html_text(repr(self.model))}</div>"


def _short_text(value: Any) -> str:
    """A function by its name, an optimizer without its defaults, others as they represent themselves."""
    if callable(getattr(value, "to_code", None)):
        return value.to_code()
    return getattr(value, "__name__", None) or shorten(repr(value), 100)
