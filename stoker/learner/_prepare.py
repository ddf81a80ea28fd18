"""From the arguments of `Learner` and `fit` to a `Fit`: every conversion happens here, before anything is trained."""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stoker.callbacks import HOOK_NAMES, Callback, Context, Hooks, Requests
from stoker.checkpoint import Checkpoint
from stoker.data import Loader, Zip
from stoker.distributed import Agreement, Parallel, World, as_parallel, find_blocks, is_distributed, is_sharded
from stoker.engine import (
    EMA,
    Ending,
    Fit,
    Kept,
    LossScale,
    Ranks,
    Recorder,
    RunningTotals,
    Settings,
    StopSignals,
    TrainState,
    TrainStep,
    agree_on_plan,
    check_deterministic,
    find_recomputed,
    join_loss,
    length_of,
    plan_fit,
)
from stoker.errors import InvalidArgument
from stoker.learner._arguments import FitArguments, make_model
from stoker.learner._data import Loaders, make_loaders
from stoker.learner._describe import describe_plan, identity_of
from stoker.learner._monitor import KnownMetrics, choose_monitor
from stoker.learner._ranks import (
    check_ranks_agree,
    describe_ranks,
    describe_training,
    distribute_model,
    find_split,
    make_reducer,
    share_loader,
)
from stoker.learner._rates import Planned, complete_rates, describe_rates, is_constant, make_learning_rates
from stoker.metrics import GradientNorm, Loss, Meter, Metric, as_metrics
from stoker.optim import SGD, Adam, Algorithm, Optimizer, init
from stoker.record import Direction, Run
from stoker.steps import OwnForward, StepFunction, Steps, Supervised

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_ALONE = World()
# Tensors and elements of a model whose update is not compiled, by device.
_MANY = {"cpu": (0, 2**17), "cuda": (32, 2**20)}
_LIGHTNING = ("lightning", "pytorch_lightning")  # whose base class has methods that do nothing


@dataclass(slots=True, eq=False, repr=False)
class Prepared:
    """A fit, and what the learner has to know about it before and after it runs."""

    fit: Fit
    home: torch.device  # where the model came from, and returns to
    metrics: KnownMetrics
    given_lr: Any  # the learner's
    lr: Any  # the same; schedules without a length have that of the fit
    ending: Ending | None = None
    kept: Kept | None = None  # of a finished run that was loaded, for `continue_`
    reopen: Callable[[], Run] | None = None  # opens a run that had ended already, for `continue_`


class Processes(NamedTuple):
    """The processes that train together."""

    world: World  # all of them
    split: World  # those among which a batch is split
    parallel: Parallel
    dry: bool  # the fit is only described: nothing is sent or sharded, and no other rank takes part


class TrainedModel(NamedTuple):
    """What is trained, and how its loss is computed."""

    model: nn.Module
    loss: Any  # None if a step or the model computes it
    trained: nn.Module  # the model; with the loss, if that is trained too
    steps: Steps


class Measured(NamedTuple):
    """What is measured, and which metric decides."""

    metrics: Sequence[Metric | Meter]
    known: KnownMetrics
    monitor: str | None
    mode: Direction | None


class Updates(NamedTuple):
    """What updates the weights, and where they are."""

    optimizer: Optimizer
    lr: Any  # the learner's; schedules without a length have that of the fit
    learning_rates: Callable[[int, float], Any]
    planned: Planned
    device: torch.device
    home: torch.device  # where the model came from
    recomputed: Sequence[nn.Module]


def prepare(
    learner: "Learner",
    arguments: FitArguments,
    *,
    seed: int | None = None,
    world: World = _ALONE,
    signals: StopSignals | None = None,
    dry: bool = False,
) -> Prepared:
    """Creates everything that a fit needs: the model, the data, the optimizer, and the fit that they are parts of.

    `seed` is the one that a resumed run drew; the learner's own takes precedence. With `dry`, the fit is only
    described: its model is not sharded, and no other rank takes part.
    """
    seed = _choose_seed(learner, seed, _ALONE if dry else world)
    parallel = as_parallel(learner.parallel)
    processes = Processes(world, find_split(world, parallel, dry=dry), parallel, dry)
    model = prepare_model(learner, arguments, warn=lambda text: fit.ctx.warn(text))
    metrics, hooks = make_metrics(learner.metrics), _make_hooks(arguments.callbacks, world)
    data = prepare_data(learner, arguments, model.steps, processes, seed=seed)
    known = KnownMetrics.of(metrics, list(data.valid), hooks, has_step=model.steps.evaluate is not None)
    measured = Measured(metrics, known, *choose_monitor(arguments.monitor, arguments.mode, known))
    updates = prepare_optimizer(learner, arguments, model, data, processes)
    fit = prepare_fit(
        learner, arguments, model, data, updates, measured, processes, hooks=hooks, seed=seed, signals=signals
    )
    home = updates.device if is_sharded(model.model) else updates.home  # shards stay where they are
    return Prepared(fit, home=home, metrics=known, given_lr=learner.lr, lr=updates.lr)


def prepare_model(learner: "Learner", arguments: FitArguments, *, warn: Callable[[str], None]) -> TrainedModel:
    """Creates the model and the loss, if the learner has none, and chooses what computes the loss.

    They stay on their device, so that an error in the data leaves them there.
    """
    model = make_model(learner.model)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InvalidArgument(
                f"{name} of {type(model).__name__} has no shape yet (a lazy module): run one batch through the model "
                "before the fit, as in model(x[:2])"
            )
    _check_steps(model, learner, arguments)
    loss = make_loss(learner, model)
    return TrainedModel(model, loss, join_loss(model, loss), make_steps(learner, model, loss, warn=warn))


def prepare_data(
    learner: "Learner", arguments: FitArguments, steps: Steps, processes: Processes, *, seed: int
) -> Loaders:
    """Creates the loaders, each with this rank's share of the batches."""
    data = make_loaders(
        arguments.train,
        arguments.valid,
        batch_size=arguments.batch_size,
        seed=seed,
        split_seed=learner.seed or 0,  # the same samples in every fit, also without a seed
    )
    if steps.train is not None and isinstance(data.train.source, Zip):
        steps.train.count.sources = data.train.source.sources.keys()
    split = processes.split

    def share(loader: Loader) -> Loader:
        return loader.shared(split.rank, split.size) if processes.dry else share_loader(loader, split)

    return Loaders(share(data.train), {name: share(loader) for name, loader in data.valid.items()}, data.notes)


def prepare_optimizer(
    learner: "Learner", arguments: FitArguments, model: TrainedModel, data: Loaders, processes: Processes
) -> Updates:
    """Moves the model to its device and distributes it; creates its optimizer and learning rates."""
    trained, world, parallel = model.trained, processes.world, processes.parallel
    planned = Planned.of(
        epochs=arguments.epochs,
        updates=arguments.updates,
        batches=length_of(data.train),
        accumulate=learner.accumulate,
    )
    lr = complete_rates(learner.lr, planned)
    learning_rates = make_learning_rates(lr, trained)
    home, device = device_of(model.model), choose_device(learner.device, model.model)
    if learner.deterministic:
        check_deterministic(device)
    for module in (model.model, model.loss):
        if isinstance(module, nn.Module):
            module.to(device)
    algorithm = choose_fused(learner.optimizer, trained, device)
    yields = model.steps.train is not None and model.steps.train.yields(model.model)
    if learner.compile and world.size == 1 and (yields or not updates_many(algorithm, trained, device)):
        algorithm = choose_fused(learner.optimizer, trained, device, compile=True)
    recomputed = find_recomputed_modules(learner, model.model, parallel)
    distribute_model(trained, parallel, world, compile=learner.compile, dry=processes.dry)
    optimizer = init(algorithm, trained)
    if optimizer.needs_closure:
        raise InvalidArgument(
            f"{optimizer!r} evaluates the loss several times in an update, and fit computes it once. Use it in a loop "
            "of your own: optimizer = optim.wrap(...).init(model), and for every update "
            "optimizer.minimize(lambda: loss(model(x), y), lr=1.0). docs/advanced.md has an example"
        )
    return Updates(optimizer, lr, learning_rates, planned, device, home, recomputed)


def prepare_fit(
    learner: "Learner",
    arguments: FitArguments,
    model: TrainedModel,
    data: Loaders,
    updates: Updates,
    measured: Measured,
    processes: Processes,
    *,
    hooks: Hooks,
    seed: int,
    signals: StopSignals | None,
) -> Fit:
    """Puts the parts together: settings, state, step and the collaborators of the loop, and the plan of how it runs."""
    world, split, parallel, dry = processes
    steps, trained, metrics, device = model.steps, model.trained, measured.metrics, updates.device
    requests = Requests()
    signals = StopSignals() if signals is None else signals
    ctx = Context(
        model=model.model,
        optimizer=updates.optimizer,
        device=device,
        seed=seed,
        epochs=arguments.epochs,
        updates_planned=arguments.updates,
        batches=length_of(data.train),
        requests=requests,
        supervised=steps.supervised,
        evaluation=lambda: state.evaluating(),
    )
    given = {
        **vars(learner),
        **vars(arguments),
        "validate_every": None if arguments.validate_every == "epoch" else arguments.validate_every,
        "monitor": measured.monitor,
        "mode": measured.mode or "min",
        "frozen": (arguments.checkpoint_settings or Checkpoint()).frozen,
    }
    settings = Settings(**{field.name: given[field.name] for field in fields(Settings)})
    ranks = Ranks(world, split, is_distributed(model.model))
    agreement = None
    if world.size > 1 and not dry:
        # What a callback requests at a batch takes effect at the same batch in every run.
        hooks_of_batches = [name for name in HOOK_NAMES if "batch" in name or name == "on_update"]
        agreement = Agreement(world, every_batch=any(map(hooks.has, hooks_of_batches)))
        requests.pending = {}
    if settings.micro_batch == "auto" and ranks.model_is_distributed:
        raise InvalidArgument(
            'micro_batch="auto" can\'t be used with a model that is distributed over processes: its forward pass is a '
            "message between them, which one that runs out of memory can't repeat alone. Give a number"
        )
    state = TrainState(
        model=model.model,
        loss=model.loss if isinstance(model.loss, nn.Module) else None,
        trained=trained,
        optimizer=updates.optimizer,
        totals=RunningTotals(
            metrics_of_phase(metrics, "train"),
            device,
            # CUDA graphs and compiled programs add to tensors that stay where they are.
            in_place=device.type == "cuda" or settings.compile,
            describe_position=lambda: f", {ctx.set_name}, epoch {ctx.epoch}, batch {ctx.batch_number}",
        ),
        ctx=ctx,
        hooks=hooks,
        train=data.train,
        valid=data.valid,
        ema=None if learner.ema is None else EMA(trained, learner.ema),
        loss_scale=LossScale() if learner.precision == "fp16" else None,
        gradient_norms={each: each.init(device) for each in metrics if isinstance(each, GradientNorm)},
        keep_best=settings.keep == "best",
    )
    step = TrainStep(
        settings=settings,
        state=state,
        steps=steps,
        device=device,
        hooks=hooks,
        ctx=ctx,
        ranks=ranks,
        reducer=make_reducer(trained, split, parallel),
        rates_vary=not is_constant(learner.lr) or hooks.has("on_train_batch_begin"),
    )
    fit = Fit(
        settings=settings,
        device=device,
        train=data.train,
        valid=data.valid,
        state=state,
        step=step,
        learning_rates=updates.learning_rates,
        valid_metrics=metrics_of_phase(metrics, "valid"),
        meters=[metric for metric in metrics if isinstance(metric, Meter)],
        hooks=hooks,
        ctx=ctx,
        requests=requests,
        ranks=ranks,
        agreement=agreement,
        parallel=parallel,
        recorder=Recorder(ctx, reports=world.is_first, ranks=split.size),
        signals=signals,
        recomputed=updates.recomputed,
    )
    signals.attach(ctx, requests)
    state.identity = identity_of(fit, learner, updates.lr)
    if agreement is not None:
        check_ranks_agree(world, lambda: describe_training(fit))
    fit.plan = plan_fit(fit) if dry else agree_on_plan(fit, plan_fit(fit))
    rates = describe_rates(updates.lr, updates.planned)
    fit.description = [*describe_plan(fit, learner), *rates, *data.notes, *describe_ranks(fit)]
    return fit


def _make_hooks(callbacks: Sequence[Callback], world: World) -> Hooks:
    """The hooks of this rank; only rank 0 writes the metrics somewhere."""
    if world.is_first:
        return Hooks(callbacks)
    from stoker.callbacks import CSV, Tracker

    return Hooks([callback for callback in callbacks if not isinstance(callback, CSV | Tracker)])


def _check_steps(model: nn.Module, learner: "Learner", arguments: FitArguments) -> None:
    """Raises for a loss or a step that would not be used, and for steps of other libraries."""
    name = type(model).__name__
    needs_valid = arguments.valid is not None and learner.valid_step is None
    for other, own, is_needed in (
        ("training_step", "train_step", learner.step is None),
        ("validation_step", "valid_step", needs_valid),
        ("test_step", "valid_step", needs_valid and _has_step(model, "train_step")),
    ):
        if is_needed and _has_step(model, other) and not _has_step(model, own):
            is_lightning = any(each.__name__ == "LightningModule" for each in type(model).__mro__)
            raise InvalidArgument(
                f"{name} has a {other}, and stoker calls {own}(batch): rename it, or define {own} as well. It gets the "
                "batch only, and returns the loss or an output with a .loss. Or give a function: "
                f"Learner({'step' if own == 'train_step' else own}=fn), fn(model, batch)"
                + (". Or train it as it is: stoker.lightning.make_learner(module)" if is_lightning else "")
            )
    if learner.step is not None:
        step = "step="
    elif _has_step(model, "train_step"):
        step = f"{name}.train_step"
    else:
        step = "" if learner.loss is not None else f"{name}.forward"
    if step == f"{name}.forward" and isinstance(arguments.train, tuple | Mapping):
        OwnForward(model, warn=lambda text: None).arguments(arguments.train)  # columns: raises now if they do not match
    if step and learner.loss is not None:
        raise InvalidArgument(
            f"{step} computes the loss, so loss= would not be used: leave it out, or remove the "
            f"{step.rpartition('.')[2].removesuffix('=')}"
        )
    if step and not (learner.inputs is learner.target is learner.weight is None):
        raise InvalidArgument(
            f"inputs=, target= and weight= name the columns for a loss function, but {step} computes the loss, and "
            "reads the batch itself"
        )


def _has_step(model: nn.Module, name: str) -> bool:
    """Whether a model has a method of this name that is not one of Lightning's, which do nothing."""
    method = getattr(model, name, None)
    return callable(method) and str(getattr(method, "__module__", "")).split(".")[0] not in _LIGHTNING


def find_recomputed_modules(learner: "Learner", model: nn.Module, parallel: Parallel) -> list[nn.Module]:
    """The modules that `Learner(recompute=)` or `Parallel(recompute=)` selects."""
    if learner.recompute is not None and parallel.recompute:
        raise InvalidArgument("recompute is given to Learner and to Parallel: leave it out of Parallel")
    if parallel.recompute is True:
        return find_blocks(model, parallel.wrap)
    wanted = learner.recompute if learner.recompute is not None else parallel.recompute
    return find_recomputed(model, wanted) if wanted else []


def _choose_seed(learner: "Learner", seed: int | None, world: World) -> int:
    """The learner's seed, the one that a resumed run drew, or one that rank 0 draws now."""
    if learner.seed is not None:
        return learner.seed
    # Also drawn if it is not used: the random weights of the model are drawn after it.
    drawn = int(torch.randint(2**31, ()).item())
    return world.broadcast_object(drawn if seed is None else seed)


def make_metrics(metrics: Sequence[Any]) -> list[Metric | Meter]:
    """Converts metrics and checks their names; the loss is always measured, so `Loss` is left out."""
    found = [metric for metric in as_metrics(metrics) if not isinstance(metric, Loss)]
    names = [metric.name for metric in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"two metrics are called {twice!r}: give one another name, as in Accuracy(name='other')")
    return found


def metrics_of_phase(metrics: Sequence[Metric | Meter], phase: str) -> list[Metric]:
    """The metrics that are measured in training or in validation."""
    return [metric for metric in metrics if not isinstance(metric, Meter) and metric.on in (phase, "both")]


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
    if not is_free or "fused" not in settings or device.type not in ("cpu", "cuda"):
        return optimizer
    fused, parameters = optimizer.replace(fused=True), list(model.parameters())
    plain = all(parameter.is_floating_point() and type(parameter) is nn.Parameter for parameter in parameters)
    sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
    return fused if plain and not sparse and not any(map(fused.parameter_problem, parameters)) else optimizer


def updates_many(algorithm: Any, model: nn.Module, device: torch.device) -> bool:
    """Whether one fused kernel updates so many parameters that compiling the update would take longer than it saves."""
    configs = algorithm.values() if isinstance(algorithm, Mapping) else [algorithm]
    fused = all(getattr(each, "fused", False) and isinstance(each, Adam | SGD) for each in configs)
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    tensors, elements = _MANY.get(device.type, _MANY["cuda"])
    return fused and len(sizes) > tensors and sum(sizes) > elements


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


def make_loss(learner: "Learner", model: nn.Module) -> Any:
    """The loss of a fit: used in place like the model; or, if every fit creates its model, a copy for every fit."""
    loss = learner.loss
    has_tensors = isinstance(loss, nn.Module) and any(True for _ in (*loss.parameters(), *loss.buffers()))
    return copy.deepcopy(loss) if has_tensors and model is not learner.model else loss


def make_steps(learner: "Learner", model: nn.Module, loss: Any, warn: Callable[[str], None] = warnings.warn) -> Steps:
    """How the loss is computed: by a loss function, a step of the learner or the model, or the model's `forward`."""
    split = Supervised(model, loss, inputs=learner.inputs, target=learner.target, weight=learner.weight, warn=warn)

    def find(function: Any, argument: str, method: str) -> StepFunction | None:
        if function is not None:
            return StepFunction(function, getattr(function, "__name__", argument), warn)
        if not _has_step(model, method):
            return None
        name = f"{type(model).__name__}.{method}"
        try:
            inspect.signature(getattr(model, method)).bind(None)
        except TypeError as error:
            raise InvalidArgument(f"{name} is called with the batch only: {name}(batch) ({error})") from None
        return StepFunction(method, name, warn)

    train = find(learner.step, "step", "train_step")
    if train is None and loss is None:
        train = OwnForward(model, warn)
    valid = find(learner.valid_step, "valid_step", "valid_step")
    return Steps(split, train, valid, find(learner.predict_step, "predict_step", "predict_step"))
