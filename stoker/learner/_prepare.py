"""From what the user said to what the loop works with: every conversion at the edge, in one place."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker._select import assign, named_parameters
from stoker.callbacks import Context, Hooks, Requests
from stoker.distributed import World, is_distributed, is_sharded
from stoker.engine import (
    Ending,
    Fit,
    LossScale,
    RankSync,
    Recorder,
    RunningTotals,
    Settings,
    StopSignals,
    TrainState,
    TrainStep,
    agree_on_plan,
    length_of,
    plan_fit,
)
from stoker.errors import InvalidArgument
from stoker.learner._data import Data, loaders
from stoker.learner._identity import identity_of
from stoker.learner._parallel import heard_here, reducer_for, split_of, spread, told
from stoker.learner._same import check_same, trained
from stoker.learner._plan import plan_of
from stoker.learner._spec import Spec
from stoker.learner._wish import Wish
from stoker.metrics import GradientNorm, Loss, Meter, Metric, as_metric
from stoker.record import Run
from stoker.optim import Adagrad, Algorithm, init
from stoker.schedule import as_schedule
from stoker.steps import Supervised

_ALONE = World()


@dataclass(slots=True)
class Prepared:
    """A fit, and what the learner has to know about it before and after it runs."""

    fit: Fit
    home: torch.device  # where the model came from, and returns to
    resumed: Mapping[str, Any] | None = None  # the state that was loaded
    ending: Ending | None = None
    reopen: Callable[[], Run] | None = None  # opens a run that had ended already, for `continue_`


def prepare(spec: Spec, wish: Wish, *, seed: int | None = None, world: World = _ALONE, dry: bool = False) -> Prepared:
    """Creates everything that a fit needs: model on its device, loaders, optimizer, schedules, metrics, hooks.

    `seed` is what an earlier part of the run drew; the spec's own comes first. A `dry` one is only looked at: its model
    is not sharded, and no other rank is asked for anything.
    """
    seed = _seed(spec, seed, _ALONE if dry else world)
    model = spec.make_model()
    has_step = _has_step(model, spec)
    numbers, hooks = metrics_of(spec.metrics), Hooks(heard_here(wish.callbacks, world))
    held_out = 0 if spec.seed is None else spec.seed  # the same samples in every fit, seeded or not
    split, rates = split_of(world, spec.parallel, dry=dry), rates_of(spec.lr, model)
    sources = loaders(wish.train, wish.valid, batch_size=wish.batch_size, seed=seed, held_out=held_out)
    data = sources.shared(split)
    home, device = device_of(model), device_for(spec.device, model)
    recipe = fastest(spec.optimizer, model.to(device), device, compile=spec.compile and world.size == 1)
    ema, optimizer = spread(model, spec.parallel, world, ema=spec.ema, dry=dry), init(recipe, model)
    requests = Requests()
    ctx = Context(
        model=model,
        optimizer=optimizer,
        device=device,
        seed=seed,
        epochs=wish.epochs,
        updates_planned=wish.updates,
        batches=length_of(data.train),
        requests=requests,
    )
    settings = settings_of(spec, wish, data)
    supervised = None if has_step else Supervised(model, loss_on(spec.loss, device))
    reduce = "sum" if supervised is not None and supervised.sums else "mean"
    loss = None if supervised is None or not isinstance(supervised.loss, nn.Module) else supervised.loss
    ranks = RankSync(world, split, model_is_distributed=is_distributed(model), agree=not dry)
    if ranks.agrees:
        requests.pending = {}
    state = TrainState(
        model=model,
        loss=loss,
        optimizer=optimizer,
        totals=RunningTotals(
            on_phase(numbers, "train"),
            device,
            # CUDA graphs and compiled programs add to tensors that stay where they are.
            in_place=device.type == "cuda" or settings.compile,
            describe_position=lambda: f", {ctx.set_name}, epoch {ctx.epoch}, batch {ctx.batch_number}",
        ),
        ctx=ctx,
        hooks=hooks,
        train=data.train,
        valid=data.valid,
        reduce=reduce,
        ema=ema,
        loss_scale=LossScale() if spec.precision == "fp16" else None,
        gradient_norms={each: each.init(device) for each in numbers if isinstance(each, GradientNorm)},
        keep_best=settings.keep == "best",
    )
    step = TrainStep(
        settings=settings,
        state=state,
        supervised=supervised,
        device=device,
        hooks=hooks,
        ctx=ctx,
        ranks=ranks,
        reducer=reducer_for(model, split, spec.parallel, reduce),
        constant_rates=not spec.compile and is_steady(spec.lr) and not hooks.has("on_train_batch_begin"),
    )
    fit = Fit(
        settings=settings,
        device=device,
        train=data.train,
        valid=data.valid,
        state=state,
        step=step,
        learning_rates=rates,
        valid_metrics=on_phase(numbers, "valid"),
        meters=[metric for metric in numbers if isinstance(metric, Meter)],
        hooks=hooks,
        ctx=ctx,
        requests=requests,
        ranks=ranks,
        parallel=spec.parallel,
        recorder=Recorder(ctx, reports=world.is_first, ranks=split.size),
        signals=StopSignals(ctx, requests),
    )
    state.identity = identity_of(fit, spec)
    if ranks.agrees:
        check_same(world, lambda: trained(fit))
    fit.plan = plan_fit(fit) if dry else agree_on_plan(fit, plan_fit(fit))
    fit.description = [*plan_of(fit, spec), *data.notes, *told(fit)]
    # Shards stay where they are.
    return Prepared(fit, home=device if is_sharded(model) else home)


def _seed(spec: Spec, seed: int | None, world: World) -> int:
    """The fit's seed: what the spec says, or what the run drew before, or one that rank 0 draws now."""
    if spec.seed is not None:
        return spec.seed
    drawn = int(torch.randint(2**31, ()).item())  # also where it has no use: the model's numbers come after it
    seed = drawn if seed is None else seed
    return seed if world.size == 1 else world.told(seed)


def _has_step(model: nn.Module, spec: Spec) -> bool:
    """Whether the model has a step of its own; without one it needs a loss."""
    has_step = callable(getattr(model, "train_step", None))
    if spec.loss is None and not has_step:
        raise nothing_to_train(model)
    return has_step


def nothing_to_train(model: nn.Module) -> InvalidArgument:
    """The error for a model that has neither a step nor a loss."""
    return InvalidArgument(
        f"there is nothing to train {type(model).__name__} on: give Learner(loss=nn.MSELoss()) or any other "
        "function of (predictions, targets), or give the model a train_step(batch) that returns the loss"
    )


def settings_of(spec: Spec, wish: Wish, data: Data) -> Settings:
    """How and how long, out of both calls."""
    return Settings(
        epochs=wish.epochs,
        updates=wish.updates,
        minutes=wish.minutes,
        accumulate=spec.accumulate,
        clip_norm=spec.clip_norm,
        clip_value=spec.clip_value,
        precision=spec.precision,
        on_nan=spec.on_nan,
        compile=spec.compile,
        validate_every=None if wish.validate_every == "epoch" else wish.validate_every,
        keep=wish.keep,
        monitor=f"{next(iter(data.valid))}/loss" if data.valid else None,
    )


def metrics_of(metrics: Sequence[Any]) -> list[Metric | Meter]:
    """Metrics with names of their own; the loss is always counted, so asking for it adds nothing."""
    found = [metric if isinstance(metric, Meter) else as_metric(metric) for metric in metrics]
    found = [metric for metric in found if not isinstance(metric, Loss)]
    names = [metric.name for metric in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"two metrics are called {twice!r}: give one another name, as in Accuracy(name='other')")
    return found


def is_steady(lr: Any) -> bool:
    """Whether a learning rate is a number, or each of several is."""
    return all(isinstance(rate, int | float) for rate in (lr.values() if isinstance(lr, Mapping) else (lr,)))


def on_phase(numbers: Sequence[Metric | Meter], phase: str) -> list[Metric]:
    """The metrics that are counted in training, or in validation."""
    return [metric for metric in numbers if isinstance(metric, Metric) and metric.on in (phase, "both")]


def fastest(recipe: Any, model: nn.Module, device: torch.device, *, compile: bool = False) -> Any:
    """The same algorithm in torch's fused form, where it has one for these parameters and the user has not chosen.

    One that is to be compiled is written out instead, and one that has no fused form keeps its counters on the GPU.
    """
    if isinstance(recipe, Mapping):
        return {selector: fastest(each, model, device, compile=compile) for selector, each in recipe.items()}
    settings = {} if not isinstance(recipe, Algorithm) else vars(recipe)
    free = settings.get("fused") is None and settings.get("foreach") is None
    if compile and free and isinstance(recipe, Algorithm):
        # Written out in operations on all parameters at once: those on single ones read the rate on the host.
        written_out = {"fused": False, "foreach": True, "capturable": True}
        return recipe.replace(**{name: value for name, value in written_out.items() if name in settings})
    if device.type == "cuda" and settings.get("capturable") is False and "fused" not in settings:
        return recipe.replace(capturable=True)
    chosen = settings.get("fused", True) is not None or settings.get("foreach") is not None
    if chosen or device.type not in ("cpu", "cuda") or (isinstance(recipe, Adagrad) and device.type == "cuda"):
        return recipe
    plain = all(parameter.is_floating_point() and type(parameter) is nn.Parameter for parameter in model.parameters())
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    return recipe.replace(fused=True) if plain and not sparse else recipe


def rates_of(lr: Any, model: nn.Module) -> Callable[[int, float], Any]:
    """(update, scale) → the learning rate of that update, or one for each selector."""
    for rate in lr.values() if isinstance(lr, Mapping) else (lr,):
        if isinstance(rate, int | float) and not 0 <= rate < math.inf:
            raise InvalidArgument(f"a learning rate is at least 0 and finite, got lr={lr!r}")
    if not isinstance(lr, Mapping):
        schedule = as_schedule(lr)
        if isinstance(lr, int | float):
            return lambda update, scale: lr if scale == 1.0 else lr * scale
        return lambda update, scale: schedule(update) * scale
    assign(lr, named_parameters(model), model)  # a pattern that matches nothing is an error now, not at the first step
    schedules = {selector: as_schedule(rate) for selector, rate in lr.items()}
    return lambda update, scale: {selector: rate(update) * scale for selector, rate in schedules.items()}


def device_for(wanted: torch.device | str | None, model: nn.Module) -> torch.device:
    """The device asked for, the one that the model is on if that is no CPU, or else the best there is."""
    own = device_of(model)
    if own.type == "meta":
        raise InvalidArgument(
            f"the parameters of {type(model).__name__} have no values (they are on the meta device): "
            "give them some with model.to_empty(device=...) and an initialisation, or load them"
        )
    if wanted is not None:
        return _usable(wanted)
    if own.type != "cpu" or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return own
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps") if torch.backends.mps.is_available() else own


def _usable(wanted: torch.device | str) -> torch.device:
    try:
        device = torch.empty(1, device=torch.device(wanted)).device  # with its number, as its tensors name it
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidArgument(f"device={wanted!r} can't be used here: {reason}") from None
    if device.type == "meta":
        raise InvalidArgument("device='meta' computes nothing; leave device out to have one found, or name 'cpu'")
    return device


def device_of(model: nn.Module) -> torch.device:
    tensor = next((each for each in (*model.parameters(), *model.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


def loss_on(loss: Any, device: torch.device) -> Any:
    """A loss with class weights needs them on the device; the user's own stays where it is."""
    if isinstance(loss, nn.Module) and device.type != "cpu" and any(True for _ in loss.buffers()):
        return copy.deepcopy(loss).to(device)
    return loss
