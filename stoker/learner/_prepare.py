"""From the arguments of `Learner` and `fit` to a `Fit`: every conversion happens here, before anything is trained."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker._select import assign, named_parameters
from stoker.callbacks import Context, Hooks, Requests
from stoker.distributed import World, as_parallel, is_distributed, is_sharded
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
from stoker.learner._arguments import FitArguments, make_model
from stoker.learner._data import make_loaders
from stoker.learner._describe import describe_plan, identity_of
from stoker.learner._ranks import (
    callbacks_of_rank,
    check_ranks_agree,
    describe_ranks,
    describe_training,
    distribute_model,
    find_split,
    make_reducer,
)
from stoker.metrics import GradientNorm, Loss, Meter, Metric, as_metric
from stoker.optim import Adagrad, Algorithm, init
from stoker.record import Run
from stoker.schedule import as_schedule
from stoker.steps import Supervised

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_ALONE = World()


@dataclass(slots=True)
class Prepared:
    """A fit, and what the learner has to know about it before and after it runs."""

    fit: Fit
    home: torch.device  # where the model came from, and returns to
    resumed: Mapping[str, Any] | None = None  # the state that was loaded
    ending: Ending | None = None
    reopen: Callable[[], Run] | None = None  # opens a run that had ended already, for `continue_`


def prepare(
    learner: "Learner",
    arguments: FitArguments,
    *,
    seed: int | None = None,
    world: World = _ALONE,
    dry: bool = False,
) -> Prepared:
    """Creates everything that a fit needs: model on its device, loaders, optimizer, schedules, metrics, hooks.

    `seed` is the one that a resumed run drew; the learner's own takes precedence. With `dry`, the fit is only
    described: its model is not sharded, and no other rank takes part.
    """
    seed = _choose_seed(learner, seed, _ALONE if dry else world)
    model = make_model(learner.model)
    has_own_step = _has_own_step(model, learner)
    metrics = make_metrics(learner.metrics)
    hooks = Hooks(callbacks_of_rank(arguments.callbacks, world))
    parallel = as_parallel(learner.parallel)
    split = find_split(world, parallel, dry=dry)
    learning_rates = make_learning_rates(learner.lr, model)
    data = make_loaders(
        arguments.train,
        arguments.valid,
        batch_size=arguments.batch_size,
        seed=seed,
        split_seed=learner.seed or 0,  # the same samples in every fit, also without a seed
    ).share(split)
    home, device = device_of(model), choose_device(learner.device, model)
    algorithm = choose_fused(learner.optimizer, model.to(device), device, compile=learner.compile and world.size == 1)
    ema, optimizer = distribute_model(model, parallel, world, ema=learner.ema, dry=dry), init(algorithm, model)
    requests = Requests()
    ctx = Context(
        model=model,
        optimizer=optimizer,
        device=device,
        seed=seed,
        epochs=arguments.epochs,
        updates_planned=arguments.updates,
        batches=length_of(data.train),
        requests=requests,
    )
    settings = Settings(
        epochs=arguments.epochs,
        updates=arguments.updates,
        minutes=arguments.minutes,
        accumulate=learner.accumulate,
        clip_norm=learner.clip_norm,
        clip_value=learner.clip_value,
        precision=learner.precision,
        on_nan=learner.on_nan,
        compile=learner.compile,
        validate_every=None if arguments.validate_every == "epoch" else arguments.validate_every,
        keep=arguments.keep,
        monitor=f"{next(iter(data.valid))}/loss" if data.valid else None,
    )
    supervised = None if has_own_step else Supervised(model, loss_on_device(learner.loss, device))
    reduce = "sum" if supervised is not None and supervised.sums else "mean"
    ranks = RankSync(world, split, model_is_distributed=is_distributed(model), agree=not dry)
    if ranks.agrees:
        requests.pending = {}
    state = TrainState(
        model=model,
        loss=supervised.loss if supervised is not None and isinstance(supervised.loss, nn.Module) else None,
        optimizer=optimizer,
        totals=RunningTotals(
            _metrics_of_phase(metrics, "train"),
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
        loss_scale=LossScale() if learner.precision == "fp16" else None,
        gradient_norms={each: each.init(device) for each in metrics if isinstance(each, GradientNorm)},
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
        reducer=make_reducer(model, split, parallel, reduce),
        constant_rates=not learner.compile and _is_constant(learner.lr) and not hooks.has("on_train_batch_begin"),
    )
    fit = Fit(
        settings=settings,
        device=device,
        train=data.train,
        valid=data.valid,
        state=state,
        step=step,
        learning_rates=learning_rates,
        valid_metrics=_metrics_of_phase(metrics, "valid"),
        meters=[metric for metric in metrics if isinstance(metric, Meter)],
        hooks=hooks,
        ctx=ctx,
        requests=requests,
        ranks=ranks,
        parallel=parallel,
        recorder=Recorder(ctx, reports=world.is_first, ranks=split.size),
        signals=StopSignals(ctx, requests),
    )
    state.identity = identity_of(fit, learner)
    if ranks.agrees:
        check_ranks_agree(world, lambda: describe_training(fit))
    fit.plan = plan_fit(fit) if dry else agree_on_plan(fit, plan_fit(fit))
    fit.description = [*describe_plan(fit, learner), *data.notes, *describe_ranks(fit)]
    # Shards stay where they are.
    return Prepared(fit, home=device if is_sharded(model) else home)


def _choose_seed(learner: "Learner", seed: int | None, world: World) -> int:
    """The learner's seed, the one that a resumed run drew, or one that rank 0 draws now."""
    if learner.seed is not None:
        return learner.seed
    # Also drawn if it is not used: the random weights of the model are drawn after it.
    drawn = int(torch.randint(2**31, ()).item())
    seed = drawn if seed is None else seed
    return seed if world.size == 1 else world.broadcast_object(seed)


def _has_own_step(model: nn.Module, learner: "Learner") -> bool:
    has_own_step = callable(getattr(model, "train_step", None))
    if learner.loss is None and not has_own_step:
        raise InvalidArgument(
            f"{type(model).__name__} has no loss: give Learner(loss=nn.MSELoss()) or any other function of "
            "(predictions, targets), or give the model a train_step(batch) that returns the loss"
        )
    return has_own_step


def make_metrics(metrics: Sequence[Any]) -> list[Metric | Meter]:
    """Converts metrics and checks their names; the loss is always measured, so `Loss` is left out."""
    found = [metric if isinstance(metric, Meter) else as_metric(metric) for metric in metrics]
    found = [metric for metric in found if not isinstance(metric, Loss)]
    names = [metric.name for metric in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"two metrics are called {twice!r}: give one another name, as in Accuracy(name='other')")
    return found


def _metrics_of_phase(metrics: Sequence[Metric | Meter], phase: str) -> list[Metric]:
    return [metric for metric in metrics if not isinstance(metric, Meter) and metric.on in (phase, "both")]


def _is_constant(lr: Any) -> bool:
    return all(isinstance(rate, int | float) for rate in (lr.values() if isinstance(lr, Mapping) else (lr,)))


def make_learning_rates(lr: Any, model: nn.Module) -> Callable[[int, float], Any]:
    """Returns a function (update, scale) → the learning rate of that update, or one for each selector."""
    for rate in lr.values() if isinstance(lr, Mapping) else (lr,):
        if isinstance(rate, int | float) and not 0 <= rate < math.inf:
            raise InvalidArgument(f"a learning rate is at least 0 and finite, got lr={lr!r}")
    if not isinstance(lr, Mapping):
        schedule = as_schedule(lr)
        if isinstance(lr, int | float):
            return lambda update, scale: lr if scale == 1.0 else lr * scale
        return lambda update, scale: schedule(update) * scale
    assign(lr, named_parameters(model), model)  # a selector that matches nothing raises now, not at the first step
    schedules = {selector: as_schedule(rate) for selector, rate in lr.items()}
    return lambda update, scale: {selector: rate(update) * scale for selector, rate in schedules.items()}


def choose_fused(optimizer: Any, model: nn.Module, device: torch.device, *, compile: bool = False) -> Any:
    """Returns the config with torch's fused implementation, if there is one and the user has not chosen.

    With `compile`, the implementation is the one that can be compiled. On a GPU, an algorithm without a fused
    implementation keeps its counters on the device.
    """
    if isinstance(optimizer, Mapping):
        return {name: choose_fused(each, model, device, compile=compile) for name, each in optimizer.items()}
    if not isinstance(optimizer, Algorithm):
        return optimizer
    settings = vars(optimizer)
    is_free = settings.get("fused") is None and settings.get("foreach") is None
    if compile and is_free:
        # foreach: operations on single parameters would read the learning rate on the host.
        compilable = {"fused": False, "foreach": True, "capturable": True}
        return optimizer.replace(**{name: value for name, value in compilable.items() if name in settings})
    if device.type == "cuda" and settings.get("capturable") is False and "fused" not in settings:
        return optimizer.replace(capturable=True)
    has_fused = "fused" in settings and not (isinstance(optimizer, Adagrad) and device.type == "cuda")
    if not is_free or not has_fused or device.type not in ("cpu", "cuda"):
        return optimizer
    plain = all(parameter.is_floating_point() and type(parameter) is nn.Parameter for parameter in model.parameters())
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    return optimizer.replace(fused=True) if plain and not sparse else optimizer


def choose_device(given: torch.device | str | None, model: nn.Module) -> torch.device:
    """The given device; otherwise that of the model if it is not the CPU; otherwise a GPU if there is one."""
    own = device_of(model)
    if own.type == "meta":
        raise InvalidArgument(
            f"the parameters of {type(model).__name__} have no values (they are on the meta device): "
            "use model.to_empty(device=...) and initialise them, or load them"
        )
    if given is not None:
        return _check_device(given)
    if own.type != "cpu" or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return own
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps") if torch.backends.mps.is_available() else own


def _check_device(given: torch.device | str) -> torch.device:
    try:
        device = torch.empty(1, device=torch.device(given)).device  # with its index, as in the device of its tensors
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidArgument(f"device={given!r} cannot be used here: {reason}") from None
    if device.type == "meta":
        raise InvalidArgument("device='meta' computes nothing; leave device out, or use 'cpu'")
    return device


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the CPU if there is none."""
    tensor = next((each for each in (*model.parameters(), *model.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


def loss_on_device(loss: Any, device: torch.device) -> Any:
    """A copy of the loss on the device if it has buffers (class weights); otherwise the loss itself."""
    if isinstance(loss, nn.Module) and device.type != "cpu" and any(True for _ in loss.buffers()):
        return copy.deepcopy(loss).to(device)
    return loss
