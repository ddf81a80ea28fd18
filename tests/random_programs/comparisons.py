"""Runs a program in several ways that have to give the same bits, and reports what differs."""

import contextlib
import gc
import importlib
import os
import re
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stoker
from stoker import Callback
from tests.random_programs import models
from tests.random_programs.hooks import CALLBACKS, CHANGES_PYTHON, FOLLOWS_VALIDATION
from tests.random_programs.models import DATA, LOSSES, METRICS, MODELS, STEPS, VALID
from tests.random_programs.program import Program, draw, simplify
from tests.random_programs.rates import OPTIMIZERS, RATES

_SHOWN = 2000  # characters of a traceback


class Different(AssertionError):
    """Two ways to run a program do not give the same."""


class MemoryGrows(Different):
    """The device holds more after a fit than before it."""


class Interrupted(Exception):
    """Raised by `Stop`."""


class ForceEager(Callback):
    """A callback between forward and update that does nothing; with it, every step runs eagerly."""

    def on_train_batch_after_loss(self, ctx):
        """Nothing."""


class Stop(Callback):
    """Ends a fit in one of several ways, at a hook, when so many updates were applied."""

    transient = True

    def __init__(self, how, hook, update):
        self.how, self.update, self.is_done = how, update, False
        setattr(self, f"on_{hook}", self._stop)

    def _stop(self, ctx):
        if self.is_done or ctx.update < self.update:
            return
        self.is_done = True
        if self.how == "exception":
            raise Interrupted("raised by the test")
        if self.how == "KeyboardInterrupt":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)


# Errors that a program may end with, the same ones in every way that it runs.
EXPECTED_ERRORS = [
    r"NotFinite: .* already holds (NaN|inf)",
    r"NotFinite: the loss .* (after|of) .*",
    r"ValueError: raised by a callback",
    r"ValueError: Expected more than 1 value per channel",
    r"OutOfMemoryError: ",
    r"BadData: epoch \d+ has trained nothing",
    r"NotDifferentiable: all parameters that '\w+' selects are frozen",  # by a callback
    r"(Interrupted|KeyboardInterrupt): ",
]


@dataclass
class Outcome:
    """What a fit gave: values by name, as bytes, texts and numbers; or its error."""

    error: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    mode: str = "failed"  # of the plan
    notes: list[str] = field(default_factory=list)
    traceback: str = ""
    peak: int = 0  # bytes of the device

    @property
    def is_expected(self) -> bool:
        """Whether the fit gave a result or an error that a program may end with."""
        if self.error is None:
            return "error after the fit" not in self.values
        return any(re.match(pattern, self.error) for pattern in EXPECTED_ERRORS)

    @property
    def ran_out_of_memory(self) -> bool:
        return self.error is not None and self.error.startswith("OutOfMemoryError")


def control() -> Any:
    """What the simulated device offers to tests; None on a real one."""
    return importlib.import_module("simulated_cuda.control") if os.environ.get("SIMULATED_CUDA") else None


def make_samples(program: Program, count: int, seed: int, bad: tuple[str, int]) -> tuple[Any, Any]:
    x, y = models.samples(count, seed, torch.float64 if program.double else torch.float32)
    return models.with_bad_samples(x, y, bad)


def make_learner(program: Program, device: str) -> stoker.Learner:
    torch.manual_seed(1)
    model_class, more = STEPS[program.step]
    model, loss = model_class(MODELS[program.model]), LOSSES[program.loss]()
    if program.step != "loss":
        model.loss = loss
    if program.double:
        model.double()
        loss = loss.double() if isinstance(loss, nn.Module) else loss
    optimizer, rate = OPTIMIZERS[program.optimizer](), RATES[program.rate]()
    if program.rates_of_objectives == "each":
        optimizer = {"head": stoker.optim.SGD(momentum=0.9), "body": optimizer}
        rate = {"head": 0.01, "body": rate}
        if any(isinstance(each, dict) for each in (optimizer["body"], rate["body"])):
            optimizer, rate = {"head": stoker.optim.SGD(momentum=0.9), "body": stoker.optim.Adam()}, 0.02
    return stoker.Learner(
        model,
        loss=loss if program.step == "loss" else None,
        optimizer=optimizer,
        lr=rate,
        metrics=[METRICS[name]() for name in program.metrics],
        clip_norm=program.clip_norm,
        clip_value=program.clip_value,
        accumulate=program.accumulate,
        precision=program.precision,
        ema=program.ema,
        on_nan=program.on_nan,
        recompute=program.recompute,
        deterministic=program.deterministic,
        seed=program.seed,
        device=device,
        **more,
    )


def fit(program: Program, learner: stoker.Learner, *, run: Path | None, callbacks: list[Callback]) -> Any:
    x, y = make_samples(program, program.samples, 5, program.bad)
    train = DATA[program.data](x, y, program.batch_size)
    has_size = isinstance(train, stoker.data.Loader | torch.utils.data.DataLoader)
    valid = VALID[program.valid](lambda count, seed: make_samples(program, count, seed, program.bad_valid))
    kind, length = program.length
    named = [CALLBACKS[name]() for name in (*program.callbacks, *program.more_callbacks)]
    checkpoint = stoker.Checkpoint(**dict(program.checkpoint)) if program.checkpoint else None
    return learner.fit(
        train,
        valid=valid,
        batch_size=None if has_size else program.batch_size,
        micro_batch=program.micro_batch,
        validate_every=program.validate_every if valid is not None else "epoch",
        keep=program.keep,
        monitor=program.monitor,
        callbacks=[*named, *callbacks],
        run=run,
        resume=run is not None,
        checkpoint=checkpoint if run is not None else None,
        system_metrics=False,
        show=False,
        **{kind: length},
    )


def bits(value: Any) -> Any:
    """A value that can be compared with ==, also if it holds NaN."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        return str(plain.dtype), tuple(plain.shape), plain.view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {name: bits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return repr(value)


def results(program: Program, fitted: Any) -> dict[str, Any]:
    """What comes out of a fit: weights, history, the record's remarks, and what the model gives for data."""
    found = {f"model.{name}": bits(value) for name, value in fitted.model.state_dict().items()}
    columns = fitted.history.to_dict()
    found |= {f"history.{name}": bits(each) for name, each in columns.items() if not re.search("second|memory", name)}
    found |= {name: bits(getattr(fitted, name)) for name in ("updates", "epochs")}
    found["warnings"] = [event.text for event in fitted.record.events_of("warning")]
    x, y = make_samples(program, 11, 9, ("none", 0))
    found["evaluate"] = bits(fitted.evaluate((x, y), batch_size=4))
    if program.step in ("loss", "train_step", "objectives"):
        found["predict"] = bits(fitted.predict((x,) if program.step == "loss" else x, batch_size=4))
    return found


def run_program(
    program: Program,
    *,
    device: str = "cuda",
    eager: bool = False,
    run: Path | None = None,
    stop: tuple[str, str, int] | None = None,
    limit: int | None = None,
) -> Outcome:
    """Runs a program once. `eager` forces eager steps; `limit` is how many bytes more than now the device has."""
    if not _is_warm:
        _warm_up(device)
    callbacks = [*([ForceEager()] if eager else []), *([] if stop is None else [Stop(*stop)])]
    outcome, simulated = Outcome(), control()
    before = None if simulated is None else (simulated.live_graphs(), torch.cuda.memory_allocated())
    if simulated is not None:
        simulated.take_races()
        torch.cuda.reset_peak_memory_stats()
        if limit is not None:
            simulated.set_memory_limit(torch.cuda.memory_allocated() + limit)
    try:
        _run_into(outcome, program, device, run, callbacks)
    finally:
        if simulated is not None:
            simulated.set_memory_limit(None)
    if simulated is not None:
        _check_device(simulated, before)
    return outcome


_is_warm: list[str] = []  # devices on which a fit has run


def _warm_up(device: str) -> None:
    """Runs one fit, which creates what a process keeps."""
    _is_warm.append(device)
    _run_into(Outcome(), Program(), device, None, [])
    gc.collect()


def _run_into(outcome: Outcome, program: Program, device: str, run: Path | None, callbacks: list[Callback]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = None
        try:
            learner = make_learner(program, device)
            fitted = fit(program, learner, run=run, callbacks=callbacks)
        except (Exception, KeyboardInterrupt) as error:
            outcome.error = _describe(error)
            outcome.traceback = "".join(traceback.format_exception(error))
            if learner is not None:  # statistics of batch norm may have seen the batch that failed
                outcome.values = {f"model.{name}": bits(value) for name, value in learner.model.named_parameters()}
            return
        outcome.mode = fitted._prepared.fit.plan.mode if fitted._prepared is not None else "loaded"
        outcome.notes = [event.text for event in fitted.record.events_of("note")]
        outcome.peak = torch.cuda.max_memory_allocated()
        if control() is not None:
            control().set_memory_limit(None)
        try:
            outcome.values = results(program, fitted)
        except Exception as error:
            outcome.values = {"error after the fit": _describe(error)}
            outcome.traceback = "".join(traceback.format_exception(error))


def _describe(error: BaseException) -> str:
    """Type and text of an error, without what differs between two runs of the same program."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    return f"{type(error).__name__}: {re.sub(r'/[^ ]*/(whole|cut|run)', '…', text)}"


def _check_device(simulated: Any, before: tuple[int, int]) -> None:
    gc.collect()
    gc.freeze()  # what is left stays; without this, each collection takes a tenth of a second
    torch.cuda.synchronize()
    races = simulated.take_races()
    if races:
        raise Different(f"streams race: {'; '.join(races)}")
    after = simulated.live_graphs(), torch.cuda.memory_allocated()
    if after[0] != before[0]:
        raise Different(f"{after[0] - before[0]} CUDA graphs are alive after the fit")
    if after[1] > before[1]:
        raise MemoryGrows(f"{after[1] - before[1]} bytes of the device are allocated after the fit")


def compare(what: str, one: Outcome, other: Outcome, *, ignore: str = "$^") -> None:
    """Raises `Different` with the names of the values that differ."""
    names = dict.fromkeys([*one.values, *other.values])
    different = [
        name
        for name in names
        if not re.search(ignore, name) and one.values.get(name, "missing") != other.values.get(name, "missing")
    ]
    unexpected = next((each for each in (one, other) if not each.is_expected), None)
    if unexpected is not None and one.error == other.error:
        raise Different(f"unexpected error {unexpected.error}\n{unexpected.traceback[-_SHOWN:]}")
    if one.error == other.error and not different:
        return
    errors = [f"  error: {each.error}" + each.traceback[-_SHOWN:] * (one.error != other.error) for each in (one, other)]
    values = [f"  {name}: {_short(one.values.get(name))} and {_short(other.values.get(name))}" for name in different]
    raise Different("\n".join([f"{what} ({one.mode}, {other.mode}):", *errors, *values])[: 2 * _SHOWN])


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], bytes):
        return f"{from_bits(value).flatten()[:4].tolist()}"
    return repr(value)[:300]


def from_bits(value: tuple[str, tuple[int, ...], bytes]) -> torch.Tensor:
    """The tensor that `bits` was given."""
    dtype, shape, content = value
    kind = getattr(torch, dtype.removeprefix("torch."))
    return (
        torch.frombuffer(bytearray(content), dtype=kind).reshape(shape) if content else torch.empty(shape, dtype=kind)
    )


# --- the comparisons


def compare_eager(program: Program, folder: Path) -> None:
    """The plan's own way (captured, if possible) gives the bits of eager steps."""
    runs = [folder / "run one" / "run", folder / "run two" / "run"] if program.saved else [None, None]
    own = run_program(program, run=runs[0])
    eager = run_program(program, run=runs[1], eager=True)
    compare("the fit and the eager fit differ", own, eager)


def compare_resumed(program: Program, folder: Path) -> None:
    """A run that is stopped, in one way or several, resumes to the bits of one that is not."""
    whole = run_program(program, run=folder / "whole")
    for stop in program.stops:
        cut = run_program(program, run=folder / "cut", stop=stop)
        if cut.error is not None and not cut.error.startswith(("Interrupted", "KeyboardInterrupt")):
            break  # the program's own error came first, or after the stop
    resumed = run_program(program, run=folder / "cut")
    # What callbacks have set in Python is not in the checkpoint of a run that had finished before.
    ignored = (
        "warnings|evaluate|predict" if CHANGES_PYTHON & {*program.callbacks, *program.more_callbacks} else "warnings"
    )
    compare("the whole run and the resumed run differ", whole, resumed, ignore=ignored)


def compare_limited(program: Program, folder: Path) -> None:
    """With less memory, a fit gives the same bits, halves its micro-batches and says so, or runs out of memory."""
    if control() is None:
        return
    whole = run_program(program)
    if whole.error is not None:
        return
    limit = int(program.memory * max(whole.peak - torch.cuda.memory_allocated(), 1))
    limited = run_program(program, limit=limit)
    if limited.ran_out_of_memory or any("do not fit into memory" in note for note in limited.notes):
        return
    compare(f"the fit and the fit with {limit} bytes differ", whole, limited)


def compare_without_validation(program: Program, folder: Path) -> None:
    """Validation does not change what is trained."""
    alone = replace(program, valid="none")
    if program.bad_valid[0] == "none":
        compare(
            "the fit with validation and the one without differ",
            run_program(program),
            run_program(alone),
            ignore="history.*valid|history.(a|b)/|history.prediction|history.time|evaluate|warnings",
        )


def compare_own_loop(program: Program, folder: Path) -> None:
    """A fit gives the weights and buffers of a loop of the user's own, up to rounding.

    With an optimizer that does not amplify it. An error that captured and eager fits have in common is found here.
    """
    program = replace(program, optimizer="SGD(momentum=0.5, nesterov=True, weight_decay=0.01)")
    fitted, learner = run_program(program), make_learner(program, "cuda")
    if fitted.error is not None:
        return
    model, loss = learner.model.cuda().train(), learner.loss
    loss = loss.cuda() if isinstance(loss, nn.Module) else loss
    optimizer = learner.optimizer.init(model)
    train = DATA[program.data](*make_samples(program, program.samples, 5, program.bad), program.batch_size)
    per_epoch, epochs = len(train), program.length[1]
    rate = stoker.schedule.as_schedule(learner.lr).with_updates(per_epoch * epochs, per_epoch=per_epoch)
    for epoch in range(epochs):
        for number, batch in enumerate(train.at(epoch=epoch)):
            x, y = (each.cuda() for each in models.columns(batch))
            grads = stoker.backward(loss(model(x), y), model)
            if program.clip_norm is not None:
                grads = grads.clip_norm(program.clip_norm)
            optimizer.step(grads, lr=rate(epoch * per_epoch + number))
    for name, value in model.state_dict().items():
        found = from_bits(fitted.values[f"model.{name}"])
        if not torch.allclose(found, value.cpu(), rtol=1e-3, atol=1e-4):
            raise Different(f"the fit and an own loop differ: {name} is {found} and {value.cpu()}")


def is_plain(program: Program) -> bool:
    """Whether a program is one that `compare_own_loop` can run."""
    done = {"model", "optimizer", "rate", "data", "samples", "batch_size", "length", "clip_norm", "seed", "metrics"}
    return (
        set(program.changes()) <= done | {"saved", "stops", "memory", "checkpoint"}
        and program.model in models.WITHOUT_RANDOM_NUMBERS
        and program.data in models.READ_BY_POSITION
        and program.length[0] == "epochs"
        and "groups" not in program.rate
    )


def check(program: Program) -> None:
    """Makes all comparisons that a program asks for; raises `Different` for the first one that fails."""
    comparisons = [compare_eager]
    comparisons += [compare_resumed] if program.stops else []
    follows = FOLLOWS_VALIDATION & {*program.callbacks, *program.more_callbacks}
    if program.valid not in ("none", "fraction") and program.keep == "last" and not follows:
        comparisons.append(compare_without_validation)
    comparisons += [compare_own_loop] if is_plain(program) else []
    comparisons += [compare_limited] if program.memory is not None else []
    for comparison in comparisons:
        try:
            _compare_in_folder(program, comparison)
        except MemoryGrows:  # once in a process, torch and stoker make scalars of each type that they keep
            _compare_in_folder(program, comparison)


def _compare_in_folder(program: Program, comparison: Callable[[Program, Path], None]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with _kept_random_state():
            comparison(program, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _kept_random_state():
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def check_and_report(program: Program, *, simplified: bool = True) -> None:
    """Checks a program; if it fails, raises with the smallest program that fails in the same way, as a script."""
    try:
        check(program)
    except Exception as error:
        kind, message = _kind(error), error
        smallest = simplify(program, lambda other: _kind_of_failure(other) == kind) if simplified else program
    else:
        return
    message = _failure_of(smallest) or message
    raise Different(
        f"{message}\n\nthe smallest program that fails so:\n\n{smallest.script()}\nthe whole program: {program!r}"
    )


def check_seed(seed: int, *, simplified: bool = True) -> None:
    """Checks the program of a seed, as `check_and_report` does."""
    try:
        check_and_report(draw(seed), simplified=simplified)
    except Different as error:
        raise Different(f"seed {seed}: {error}") from None


def _failure_of(program: Program) -> Exception | None:
    try:
        check(program)
    except Exception as error:
        return error
    return None


def _kind_of_failure(program: Program) -> str:
    error = _failure_of(program)
    return "" if error is None else _kind(error)


def _kind(error: Exception) -> str:
    """What a failure says before its numbers, so that simplifying does not end at another one."""
    return re.split(r"[\d(:]", str(error))[0] + type(error).__name__
