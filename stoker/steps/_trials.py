"""What a loss function is a mean over, found out by trying it with a few rows of predictions and targets.

The loss of some rows is compared with the losses of two unequal parts of them, under the hypotheses that there are: it
is a sum over the samples, a mean over them, or a mean over the targets of a cross-entropy that was seen to run.
"""

import copy
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from stoker._dispatch import run_compiled_eagerly
from stoker._tree import map_leaves, tensors_in
from stoker.steps._loss_count import TargetCount, WatchCrossEntropies, find_by_value, targets_of_call
from stoker.steps._samples import is_one_per_sample
from stoker.steps._valid import unwrap

Hypothesis = Literal["sum", "samples"] | TargetCount  # what a loss is: a sum, a mean over samples, or over targets

_MOST_ROWS = 64  # of a batch, from which trials draw
_MOST_ELEMENTS = 2**19  # of a row; of larger rows only three are tried, as they are
_MOST_WEIGHTS = 2**24  # of a loss module; a larger one shares its parameters with its copy
_ROUNDING = 16  # by how many units in the last place the two sides of an equation may differ
_SEEDS = (0, 1)
# Numbers by which targets often say that they do not count.
_MARKS = {"marked": (0.0, 1.0), "negative": (-1.0,), "missing": (float("nan"),)}
_FLOAT32 = torch.finfo(torch.float32).eps


class Findings(NamedTuple):
    """What trials of a loss function have shown."""

    holds: Sequence[Hypothesis]  # in all trials, at least one of which could have refuted it
    holds_unless_ignored: Sequence[Hypothesis]  # in the trials in which no target is ignored
    targets: Sequence[TargetCount]  # of the cross-entropies that were seen
    can_be_tried: bool = True  # no exception, and the same value for the same rows
    is_conclusive: bool = True  # False: no loss was finite, or all were alike
    loses_terms: bool = False  # a part whose class weights are all 0 has a loss, but counts for nothing


NOT_TRIED = Findings([], [], [], can_be_tried=False)


def try_loss(loss: Callable[..., Any], predictions: Any, targets: Any, samples: int) -> Findings:
    """Tries a loss function with rows that are drawn from the predictions and targets of a batch.

    >>> predictions, targets = torch.randn(4, 3), torch.randn(4, 3)
    >>> try_loss(lambda p, t: (p - t).square().sum() / len(p), predictions, targets, 4).holds
    ['samples']
    >>> try_loss(lambda p, t: (p - t).square().mean(0).sum() * len(p), predictions, targets, 4).holds
    ['sum']

    It needs no forward pass, changes neither the loss nor the batch, and draws no random numbers. Numbers and classes
    are drawn anew, so that little depends on what the batch happens to hold. On a GPU the rows are copied to the CPU:
    an index out of range would end the process.
    """
    batch = predictions, targets
    rows = _Rows(batch, samples)
    if rows.dims.keys() & {id(each) for each in tensors_in(predictions)} == set():
        return NOT_TRIED  # a structure that can't be split
    largest = max(each.numel() // samples for each in tensors_in(batch) if id(each) in rows.dims)
    with _undisturbed(next(iter(tensors_in(predictions))).device):
        if largest > _MOST_ELEMENTS:
            return _try_as_they_are(loss, rows)
        drawn = _Rows(rows.take(min(samples, _MOST_ROWS)), min(samples, _MOST_ROWS), like=rows)
        is_on_cpu = all(each.device.type == "cpu" for each in tensors_in(batch))
        types = {each.dtype for each in tensors_in(predictions) if each.is_floating_point()}
        for dtype in (torch.float64, None if types <= {torch.float32} else torch.float32, None):
            # The loss may raise for other rows or types, and the batch may have a structure to which rows mean nothing.
            with suppress(Exception):
                function = _Function(loss, dtype, None if is_on_cpu else torch.device("cpu"))
                return _Trials(function, drawn.to_cpu(dtype)).run()
        if is_on_cpu:
            return NOT_TRIED
        return _try_as_they_are(loss, drawn)  # it may hold tensors of the GPU


def _try_as_they_are(loss: Callable[..., Any], rows: "_Rows") -> Findings:
    try:
        return _Trials(_Function(loss, None, None), rows).run_with_rows_as_they_are()
    except Exception:
        return NOT_TRIED


class _CanNotTry(Exception):
    """The loss function raises for other rows than those of a batch, or does not compute the same twice."""


class _Rows:
    """Predictions and targets of a batch, and which dimension of each tensor holds the samples."""

    def __init__(self, batch: Any, samples: int, like: "_Rows | None" = None) -> None:
        self.batch, self.samples, self.dims = batch, samples, dict[int, int]()  # the dimension, by the id of a tensor

        def note(_: Any, dim: int | None, leaf: Any) -> None:
            if dim is not None:
                self.dims[id(leaf)] = dim

        if like is None:
            for tensor in tensors_in(batch):
                note(None, _dimension_of_samples(tensor, samples), tensor)
        else:
            like.map(note, batch)

    def map(self, function: Callable[..., Any], *others: Any) -> Any:
        """Calls `function(leaf, dimension of samples or None, *other leaves)`; a list of samples is a leaf of them."""

        def call(leaf: Any, *rest: Any) -> Any:
            return function(leaf, self.dims.get(id(leaf)) if isinstance(leaf, Tensor) else None, *rest)

        return map_leaves(call, self.batch, *others, is_leaf=self.is_list_of_samples)

    def is_list_of_samples(self, value: Any) -> bool:
        if value is self.batch or not isinstance(value, list | tuple) or len(value) != self.samples:
            return False
        return is_one_per_sample(value, self.samples, is_part=True)

    def take(self, count: int) -> Any:
        """The first samples."""
        return self.part(self.batch, slice(0, count))

    def part(self, batch: Any, rows: slice) -> Any:
        """Some samples of a batch of the same structure."""

        def select(source: Any, dim: int | None, value: Any) -> Any:
            if isinstance(source, list | tuple):
                return value[rows]
            return value if dim is None else value[(slice(None),) * dim + (rows,)]

        return self.map(select, batch)

    def to_cpu(self, dtype: torch.dtype | None) -> "_Rows":
        """Copies on the CPU, floating-point numbers in a type."""

        def convert(leaf: Any, dim: int | None) -> Any:
            if isinstance(leaf, list | tuple):
                return type(leaf)([each.to("cpu") if isinstance(each, Tensor) else each for each in leaf])
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.detach().to("cpu", dtype if leaf.is_floating_point() else None, copy=True)

        return _Rows(self.map(convert), self.samples, like=self)

    @property
    def widths(self) -> set[int]:
        """The sizes of all dimensions but those of the samples."""
        shapes = [(list(each.shape), self.dims.get(id(each))) for each in tensors_in(self.batch)]
        return {size for shape, dim in shapes for place, size in enumerate(shape) if place != dim}


def _dimension_of_samples(tensor: Tensor, samples: int) -> int | None:
    """The first dimension, or the second one if time comes first; None if a tensor has no row for each sample."""
    if tensor.is_nested or tensor.layout != torch.strided:
        return None
    return next((dim for dim, size in enumerate(tensor.shape[:2]) if size == samples), None)


class _Function:
    """A loss function to call any number of times without a trace.

    A module is copied. A method of the model is called as it is; what it writes to buffers and attributes is undone.
    """

    def __init__(self, loss: Callable[..., Any], dtype: torch.dtype | None, device: torch.device | None) -> None:
        self._loss = self._copy(loss, dtype, device)
        self._modules = list(_module_of(self._loss).modules())
        # The tensors of the loss itself, by the place that their copies have here.
        self._originals = [each for module in _module_of(loss).modules() for each in _tensors_of(module)]
        self._tensors: list[Tensor | None] = []  # that the last call has used

    def _copy(self, loss: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
        if isinstance(loss, partial):
            return partial(self._copy(loss.func, dtype, device), *loss.args, **loss.keywords)
        if not isinstance(loss, nn.Module):
            return loss
        module = unwrap(loss)
        is_large = sum(each.numel() for each in module.parameters()) > _MOST_WEIGHTS
        if is_large and (dtype is not None or device is not None):
            raise _CanNotTry

        def convert(tensor: Tensor) -> Tensor:
            return tensor.detach().to(device, dtype if tensor.is_floating_point() else None, copy=True)

        memo: dict[int, Any] = {id(each): convert(each) for each in module.buffers()}
        for each in module.parameters():
            memo[id(each)] = each if is_large else nn.Parameter(convert(each), requires_grad=each.requires_grad)
        try:
            return copy.deepcopy(module, memo)
        except Exception as error:
            raise _CanNotTry from error

    def original(self, tensor: Tensor | None) -> Tensor | None:
        """The tensor of the loss, if the last call has used a copy of it."""
        place = next((place for place, each in enumerate(self._tensors) if each is tensor), None)
        return tensor if tensor is None or place is None else self._originals[place]

    def __call__(self, predictions: Any, targets: Any, seed: int = 0) -> float:
        """The loss, as a number. Random numbers are the same in every call."""
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            with _undo_changes(self._modules):
                self._tensors = [each for module in self._modules for each in _tensors_of(module)]
                value = self._loss(predictions, targets)
        except Exception as error:
            raise _CanNotTry from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise _CanNotTry
        return value.item()


def _module_of(loss: Any) -> nn.Module:
    """The module that a loss is, or is a method of; an empty one for any other function."""
    while isinstance(loss, partial):
        loss = loss.func
    module = getattr(loss, "__self__", loss)
    return unwrap(module) if isinstance(module, nn.Module) else nn.Module()


def _tensors_of(module: nn.Module) -> list[Tensor | None]:
    return [*module._buffers.values(), *module._parameters.values()]


@contextmanager
def _undo_changes(modules: list[nn.Module]) -> Iterator[None]:
    """Buffers are replaced by copies: the backward pass may need them, and would notice if they were written."""
    attributes = [dict(module.__dict__) for module in modules]
    buffers = [dict(module._buffers) for module in modules]
    for module, before in zip(modules, buffers, strict=True):
        module._buffers.update({name: None if each is None else each.clone() for name, each in before.items()})
    try:
        yield
    finally:
        for module, attribute, before in zip(modules, attributes, buffers, strict=True):
            module.__dict__.clear()
            module.__dict__.update(attribute)
            module._buffers.clear()
            module._buffers.update(before)


class _Watch(WatchCrossEntropies):
    """Also notes the lowest precision of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.precision = torch.finfo(torch.float64).eps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(result, Tensor) and result.is_floating_point():
            self.precision = max(self.precision, torch.finfo(result.dtype).eps)
        return result


class _Trials:
    """The trials of a loss function."""

    def __init__(self, function: _Function, rows: _Rows) -> None:
        self._function, self._rows = function, rows
        self._random = torch.Generator().manual_seed(0)
        self._candidates: list[tuple[TargetCount, Tensor, int]] = []  # with their targets and number of classes
        self._class_weights: dict[int, Tensor | None] = {}  # of the loss itself, by the id of a candidate
        self._refuted: set[int] = set()
        self._confirmed: set[int] = set()
        self._hypotheses: list[Hypothesis] = ["sum", "samples"]
        self._precision = torch.finfo(torch.float64).eps
        self._was_finite = False

    # --- which trials

    def run(self) -> Findings:
        """Tries rows with drawn classes, then with ignored targets, and then others that may refute what holds."""
        sizes = self._choose_sizes()
        self._find_cross_entropies(self._draw(sum(sizes[0])))
        for noise in (0.0, 0.1):
            for size in sizes:
                self._try(size, noise=noise)
            if self._holds() or not self._remaining():
                break
        without_ignored = self._holds()
        if not without_ignored and not self._remaining():
            self._check_repeatable(self._draw(sum(sizes[0])))
        if self._candidates:
            for size, noise in itertools.product(sizes, (0.0, 0.1)):
                self._try(size, kind="ignored", noise=noise)
        for kind in ("shuffled", "marked", "negative", "missing"):
            for size, noise in itertools.product(sizes, (0.0, 0.1)):
                if self._remaining() and self._has(kind):
                    self._try_to_refute(size, kind, noise)
        holds = self._holds()
        return self._findings(holds, without_ignored, loses_terms=self._loses_terms(holds, sizes[0]))

    def run_with_rows_as_they_are(self) -> Findings:
        """One trial with two or three rows of the batch."""
        samples, rows = self._rows.samples, self._rows
        size = (1, 1) if samples == 2 else (1, 2)
        if samples == 1:
            index = torch.zeros(3, dtype=torch.long)
            batch = rows.map(lambda leaf, dim: _pick(leaf, dim, index))
        else:
            batch = rows.take(sum(size))
        self._find_cross_entropies(batch)
        self._compare(batch, size)
        holds = self._holds()
        return self._findings(holds, holds)

    @property
    def _targets(self) -> list[TargetCount]:
        return [count for count, _, _ in self._candidates]

    def _findings(
        self, holds: Sequence[Hypothesis], without_ignored: Sequence[Hypothesis], *, loses_terms: bool = False
    ) -> Findings:
        """The result, with the class weights of the loss itself in place of those of its copy."""
        is_conclusive = bool(holds) or (self._was_finite and not self._remaining())
        own = {id(count): count._replace(class_weight=self._class_weights[id(count)]) for count in self._targets}
        holds = [each if isinstance(each, str) else own[id(each)] for each in holds]
        without_ignored = [each if isinstance(each, str) else own[id(each)] for each in without_ignored]
        return Findings(
            holds, without_ignored, list(own.values()), is_conclusive=is_conclusive, loses_terms=loses_terms
        )

    def _remaining(self) -> list[Hypothesis]:
        return [each for place, each in enumerate(self._hypotheses) if place not in self._refuted]

    def _holds(self) -> list[Hypothesis]:
        places = sorted(self._confirmed - self._refuted)
        return [self._hypotheses[place] for place in places]

    def _choose_sizes(self) -> list[tuple[int, int]]:
        """The sizes of two unequal parts for two trials, none of which is the size of another dimension."""
        widths, free = self._rows.widths, itertools.count(2)
        sizes = [size for size in itertools.islice(free, len(widths) + 12) if size not in widths]
        pairs = sorted(((a, b) for a, b in itertools.combinations(sizes, 2)), key=sum)
        chosen: list[tuple[int, int]] = []
        for pair in pairs:
            if sum(pair) not in widths and sum(pair) not in map(sum, chosen):
                a, b = pair
                chosen.append((a, b) if chosen else (b, a))
            if len(chosen) == 2:
                break
        return chosen

    def _has(self, kind: str) -> bool:
        leaves = tensors_in(self._rows.batch[1])
        return bool(leaves) and (kind == "shuffled" or any(each.is_floating_point() for each in leaves))

    # --- one trial

    def _try(self, size: tuple[int, int], *, kind: str = "", noise: float = 0.0) -> None:
        self._compare(self._draw(sum(size), size[0], kind=kind, noise=noise), size)

    def _try_to_refute(self, size: tuple[int, int], kind: str, noise: float) -> None:
        """Values that the loss may not take show nothing if it raises."""
        with suppress(_CanNotTry):
            self._try(size, kind=kind, noise=noise)

    def _compare(self, batch: Any, size: tuple[int, int]) -> None:
        """Compares a loss with those of two parts under each hypothesis."""
        parts = self._rows.part(batch, slice(0, size[0])), self._rows.part(batch, slice(size[0], sum(size)))
        losses = [self._function(*each) for each in (batch, *parts)]
        whole, first, second = losses
        if not all(map(numpy.isfinite, losses)):
            return
        self._was_finite = True
        for place, hypothesis in enumerate(self._hypotheses):
            is_exact = isinstance(hypothesis, str) or hypothesis.class_weight is None
            precision = self._precision if is_exact else max(self._precision, _FLOAT32)  # class weights are added in it
            tolerance = _ROUNDING * precision * max(map(abs, losses))
            if hypothesis == "sum":
                expected = first + second
                could_be_refuted = min(abs(first), abs(second)) > 4 * tolerance
            else:
                weights = [self._weigh(hypothesis, each, count) for each, count in zip(parts, size, strict=True)]
                if not sum(weights):
                    continue
                expected = (first * weights[0] + second * weights[1]) / sum(weights)
                could_be_refuted = abs(expected - (first + second) / 2) > 4 * tolerance
            if abs(whole - expected) > tolerance:
                self._refuted.add(place)
            elif could_be_refuted:
                self._confirmed.add(place)

    def _weigh(self, hypothesis: Any, part: Any, samples: int) -> float:
        if hypothesis == "samples":
            return samples
        return float(hypothesis(hypothesis.targets(part[1])))

    def _find_cross_entropies(self, batch: Any) -> None:
        """Runs the loss once, to see in which precision it computes, and cross-entropies of which targets."""
        with _Watch() as watch:
            value = self._function(*batch)
        self._precision = max(self._precision, watch.precision)
        found = [(count, call.classes) for call in watch.calls for count in targets_of_call(call, batch[1])]
        if not found and isinstance(batch[0], Tensor):
            loss = torch.tensor(value, dtype=torch.float64)
            found = [(count, batch[0].shape[-1]) for count in find_by_value(loss, batch[0], batch[1])]
        for count, classes in found:
            known = [(each.path, each.shift, each.ignore_index) for each in self._targets]
            if (count.path, count.shift, count.ignore_index) not in known:
                # The targets of the batch, from which trials draw.
                self._candidates.append((count, count.targets(self._rows.batch[1]), classes))
                self._class_weights[id(count)] = self._function.original(count.class_weight)
                self._hypotheses.append(count)

    def _check_repeatable(self, batch: Any) -> None:
        """Raises if the loss has random numbers in it, or depends on the calls before."""
        values = [self._function(*batch, seed=seed) for seed in _SEEDS]
        if values[0] != values[1] and numpy.isfinite(values).all():
            raise _CanNotTry

    def _loses_terms(self, holds: list[Hypothesis], size: tuple[int, int]) -> bool:
        """Whether targets whose class weights are all 0 add to the loss of other targets, as with label smoothing.

        A part with such targets alone is divided by 0, and does not count.
        """
        for count in self._targets:
            weight = count.class_weight
            if weight is None or bool(weight.all()) or not any(each is count for each in holds):
                continue
            batch, zero = self._draw(sum(size)), int((weight == 0).nonzero()[0])
            second = self._rows.part(batch, slice(size[0], None))[1]
            count.targets(second).fill_(zero)  # a view
            first = self._function(*self._rows.part(batch, slice(0, size[0])))
            if abs(self._function(*batch) - first) > _ROUNDING * max(self._precision, _FLOAT32) * abs(first):
                return True
        return False

    # --- drawn rows

    def _draw(self, count: int, first: int = 0, *, kind: str = "", noise: float = 0.0) -> Any:
        """Some rows: mixtures of predictions with numbers that sum to 1, and targets with drawn classes.

        `kind` says what happens to the targets: of cross-entropies some are "ignored"; values are "shuffled", or some
        are `_MARKS`. `first` is the size of the first part.
        """
        samples = self._rows.samples
        repeats = [torch.randperm(samples, generator=self._random) for _ in range(-(-count // samples))]
        index = torch.cat(repeats)[:count]
        other = torch.randint(samples, (count,), generator=self._random)
        share = 0.3 + 0.7 * self._uniform(count)
        drawn_classes = {id(leaf): (count_, classes) for count_, leaf, classes in self._candidates}

        def mix(leaf: Any, dim: int | None) -> Any:
            rows = _pick(leaf, dim, index)
            if dim is None or not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                return rows
            shares = share.to(leaf.dtype).reshape([-1 if place == dim else 1 for place in range(leaf.dim())])
            mixed = rows * shares + _pick(leaf, dim, other) * (1 - shares)
            return mixed + noise * self._normal(mixed) if noise else mixed

        def redraw(leaf: Any, dim: int | None) -> Any:
            rows = _pick(leaf, dim, index)
            if dim is None or not isinstance(leaf, Tensor):
                return rows
            if id(leaf) in drawn_classes:
                settings = drawn_classes[id(leaf)]
                return self._draw_classes(rows.movedim(dim, 0), *settings, first if kind == "ignored" else 0).movedim(
                    0, dim
                )
            if kind == "shuffled":
                return self._shuffle(leaf, rows)
            if kind in _MARKS and leaf.is_floating_point():
                chance = self._uniform(*rows.shape)
                for place, mark in enumerate(_MARKS[kind]):
                    rows = rows.masked_fill((0.3 * place <= chance) & (chance < 0.3 * (place + 1)), mark)
                rows.select(dim, first).reshape(-1)[:1] = _MARKS[kind][-1]  # at least one in the second part
                return rows
            return rows + noise * self._normal(rows) if noise and leaf.is_floating_point() else rows

        predictions, targets = self._rows.batch
        of = self._rows.dims.get
        is_leaf = self._rows.is_list_of_samples
        return (
            map_leaves(lambda leaf: mix(leaf, of(id(leaf))), predictions, is_leaf=is_leaf),
            map_leaves(lambda leaf: redraw(leaf, of(id(leaf))), targets, is_leaf=is_leaf),
        )

    def _draw_classes(self, rows: Tensor, count: TargetCount, classes: int, first: int) -> Tensor:
        """Drawn classes; with `first`, some are ignored, more of them in the second part than in the first."""
        drawn = torch.randint(classes, rows.shape, generator=self._random).to(rows.dtype)
        ignored = self._uniform(*rows.shape) < 0.6
        ignored[:first] = ignored[:first] & (self._uniform(*ignored[:first].shape) < 0.3)
        best = 0 if count.class_weight is None else int(count.class_weight.argmax())
        for place in (0, first):  # something counts in each part
            ignored[place].reshape(-1)[-1:] = False
            drawn[place].reshape(-1)[-1:] = best
        if rows.dim() == 1:  # at least one is ignored
            ignored[-1] = True
        return drawn.masked_fill(ignored, count.ignore_index) if first else drawn

    def _shuffle(self, leaf: Tensor, rows: Tensor) -> Tensor:
        """Values of a tensor in any order; of whole numbers also those that are smaller than the largest."""
        values = leaf.reshape(-1)
        drawn = values[torch.randint(len(values), rows.shape, generator=self._random)]
        if leaf.dtype == torch.bool:
            return self._uniform(*rows.shape) < 0.5
        if leaf.is_complex():
            return drawn
        chance = self._uniform(*rows.shape)
        drawn = torch.where(chance < 0.2, values.min(), drawn)
        if leaf.is_floating_point():
            return torch.where(chance > 0.8, values.max(), drawn)
        most = max(int(values.max()), 1)
        return torch.where(chance > 0.5, torch.randint(most + 1, rows.shape, generator=self._random).to(leaf), drawn)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._random)

    def _normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._random).to(like)


def _pick(leaf: Any, dim: int | None, index: Tensor) -> Any:
    """Rows of a tensor, or entries of a list with one for each sample."""
    if isinstance(leaf, list | tuple):
        return type(leaf)([leaf[place] for place in index.tolist()])
    return leaf if dim is None else leaf.detach().index_select(dim, index.to(leaf.device))


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Without autocast, compilation and warnings; random numbers continue afterwards as if none had been drawn."""
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    of_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(run_compiled_eagerly())
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])
            torch.set_rng_state(before[2])
            for place, state in enumerate(of_devices):
                torch.cuda.set_rng_state(state, place)
