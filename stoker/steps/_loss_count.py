"""What the loss that a model or a step computes is a mean over, found out from its graph."""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker._dispatch import WatchingMode
from stoker._text import pluralize
from stoker._tree import tensors_in
from stoker.steps._losses import is_traced
from stoker.steps._outputs import count_targets
from stoker.steps._samples import count_samples, is_one_per_sample

# Operations that a loss may end in without being another mean or sum.
_SAME = ("Add", "Sub", "Neg", "ToCopy", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias")
_JOINS = ("Stack", "Cat")  # of the terms of a loss, before they are added up
TARGET_NAMES = ("labels", "label", "targets", "target")
_PROBLEM = "problem"  # in saved state, where else a layout is
_DEPTH = 3  # of nesting: targets that are deeper in a batch are not found
_MOST_COMPARED = 8  # batches after the first one
_MOST_NODES = 16  # in the graph of a learned factor of a loss


class TargetCount(NamedTuple):
    """Counts the targets of a cross-entropy that are not ignored."""

    path: tuple[Any, ...]  # of the targets in a batch
    shift: int  # 1 if the first target of every row does not count: the model predicts the next token
    ignore_index: int
    class_weight: Tensor | None = None

    @property
    def saved(self) -> list[Any]:
        """The fields as plain values."""
        weight = () if self.class_weight is None else (self.class_weight.tolist(),)
        return [list(self.path), self.shift, self.ignore_index, *weight]

    @classmethod
    def load(cls, saved: list[Any], device: torch.device | None) -> Self:
        """Creates one from `saved` of another."""
        path, shift, ignore_index, *weight = saved
        return cls(tuple(path), shift, ignore_index, torch.tensor(weight[0], device=device) if weight else None)

    def targets(self, batch: Any) -> Any:
        """The targets of a batch; None if it has none there."""
        for key in self.path:
            try:
                batch = batch[key]
            except (KeyError, IndexError, TypeError):
                return None
        return batch

    def __call__(self, targets: Tensor) -> Tensor:
        """The number of targets that count, or the sum of their class weights, on the device."""
        return count_targets(targets, self.shift, self.ignore_index, self.class_weight)


class CrossEntropyCall(NamedTuple):
    """A cross-entropy."""

    targets: Tensor
    ignore_index: int
    class_weight: Tensor | None = None
    mean: Tensor | None = None  # its result, if that is a mean
    classes: int = 0

    def has_value(self, loss: Tensor) -> bool:
        """Whether a loss has the value of this cross-entropy, which is a mean: it is its result, or a copy."""
        return self.mean is not None and bool((self.mean == loss).all() | (self.mean.isnan() & loss.isnan()).all())


class WatchCrossEntropies(WatchingMode):
    """Collects the cross-entropies that are computed: without gradients there is no graph that shows them.

    >>> with WatchCrossEntropies() as watched:
    ...     loss = F.cross_entropy(torch.zeros(2, 3), torch.tensor([1, -100]))
    >>> watched.calls[0].targets, watched.calls[0].has_value(loss)
    (tensor([   1, -100]), True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[CrossEntropyCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("nll_loss_forward", "nll_loss2d_forward"):
            scores, targets, weight, reduction, ignore_index = args
            mean = result[0] if reduction == 1 else None
            self.calls.append(CrossEntropyCall(targets, ignore_index, weight, mean, scores.shape[scores.dim() > 1]))
        return result


class LossCount:
    """Finds out from the first loss of a step what it is a mean over, and counts that in later batches.

    >>> count = LossCount("step")
    >>> logits, labels = torch.randn(2, 3, 7, requires_grad=True), torch.tensor([[1, 2, -100], [3, -100, -100]])
    >>> loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    >>> count.observe(loss, {"labels": labels}, samples=2)
    >>> count({"labels": labels[:1]})
    tensor(2.)

    A cross-entropy is a mean over the targets that are not ignored (with class weights: over their weights), if the
    batch holds its targets. Every other loss is taken for a mean over the samples, which `None` stands for. If the
    graph of the loss shows that it may not be one, `warn` gets a text about it, once, as soon as losses are combined:
    if `is_split` says so, or for the first batch of another size. For batches of another layout (of another source,
    for example) it finds out again.
    """

    __slots__ = (
        "_name",
        "_problem",
        "_quotients",
        "_samples",
        "_saved",
        "_target_counts",
        "_unclear",
        "_warn",
        "is_split",
        "sources",
    )

    def __init__(self, name: str, warn: Callable[[str], None] = warnings.warn) -> None:
        self._name, self._warn = name, warn
        self._problem = _Problem()
        self._samples: int | None = None  # of the batch in which the problem was found
        # By layout: in how many batches more to look at divisors, the samples of the first batch, and its divisors.
        self._quotients: dict[str, tuple[int, int, list[float]]] = {}
        self.is_split = False  # a batch is computed in parts: accumulation, micro-batches or several processes
        self.sources: Collection[str] = ()  # that are read side by side, in batches that all have the same sizes
        self._target_counts: dict[str, TargetCount | None] = {}  # by the layout of a batch; None: the samples count
        # Layouts of which a later batch has to show more, with the divisors that a batch of one sample had.
        self._unclear: dict[str, list[float]] = {}
        self._saved: list[Any] | Literal["stale"] | None = None

    def __copy__(self) -> "LossCount":
        other = LossCount(self._name, self._warn)
        other._target_counts, other._unclear = {**self._target_counts}, {**self._unclear}
        other._problem, other._samples = self._problem, self._samples  # reported once by all copies
        other._saved = self._saved
        other.is_split, other.sources, other._quotients = self.is_split, self.sources, {**self._quotients}
        return other

    def __call__(self, batch: Any) -> Tensor | None:
        """What the loss of a batch is a mean over; None for the number of samples."""
        count = self.target_count(batch)
        targets = None if count is None else count.targets(batch)
        return count(targets) if count is not None and isinstance(targets, Tensor) else None

    def target_count(self, batch: Any) -> TargetCount | None:
        """How the targets of batches like this one are counted, if the loss is a mean over them."""
        return self._target_counts.get(_describe_layout(batch))

    def knows(self, batch: Any) -> bool:
        """Whether it is known what the loss of batches like this one is a mean over."""
        layout = _describe_layout(batch)
        if layout not in self._target_counts or layout in self._unclear:
            return False
        count = self._target_counts[layout]
        return count is None or isinstance(count.targets(batch), Tensor)

    @property
    def is_known(self) -> bool:
        """Whether it is known for all batches so far."""
        return bool(self._target_counts) and not self._unclear

    def accept(self, batch: Any, targets: TargetCount | None = None, *, is_known: bool = True) -> None:
        """Takes the losses of batches like this one for means over targets; None: over samples, or what outputs say.

        Unless it `is_known`, the next batch may show something else.
        """
        layout = _describe_layout(batch)
        if targets is not None and targets.class_weight is not None:  # which may be of a trial on the CPU
            targets = targets._replace(class_weight=targets.class_weight.to(targets.targets(batch).device))
        self._saved = "stale"
        self._target_counts[layout] = targets
        self._unclear.pop(layout, None)
        if not is_known:
            self._unclear[layout] = []

    def note_problem(self, reason: str, targets: TargetCount | None, *, unless_complete: bool = False) -> None:
        """Notes that something is unclear; `unless_complete`: only in batches in which some targets are ignored."""
        self._note(self._describe_problem(reason, targets), unless_complete=unless_complete)

    def _note(self, text: str, *, unless_complete: bool = False) -> None:
        self._saved = "stale"
        if not self._problem.text:
            self._problem.text, self._problem.unless_complete = text, unless_complete

    def follow(self, loss: Tensor | None, batch: Any, size: int | None = None, rows: Any = None) -> None:
        """Looks at a later batch, if something was unclear.

        Warns, once, if that matters: if losses of parts are combined, or of batches of different sizes. `rows` are what
        the samples of the batch are counted in, and `size` their number, if the loader knows it.
        """
        problem = self._problem
        if not self._quotients and (problem.was_reported or not problem.text):
            return
        samples = count_samples(batch if rows is None else rows, size)
        if self._quotients and loss is not None:
            self._compare(loss, batch, samples)
        self._samples = samples if self._samples is None else self._samples
        is_combined = self.is_split or samples != self._samples
        if not problem.text or problem.was_reported or not is_combined:
            return
        if not (problem.unless_complete and self._is_complete(batch)):
            problem.was_reported, self._saved = True, "stale"
            self._warn(problem.text)

    def _is_complete(self, batch: Any) -> bool:
        """Whether it is certain that no target of a batch is ignored; on a GPU nobody waits to see."""
        count = self.target_count(batch)
        targets = None if count is None else count.targets(batch)
        if count is None or not isinstance(targets, Tensor) or targets.device.type != "cpu" or is_traced():
            return False
        return bool((targets[..., count.shift :] != count.ignore_index).all())

    def show_certainly(self, loss: Tensor, batch: Any, samples: int) -> TargetCount | None:
        """The targets over which a loss is a mean, if its graph shows that with certainty."""
        terms = [] if loss.grad_fn is None else _find_terms(loss.grad_fn, ())
        call = next((term.call for term in terms if term.call is not None), None)
        found = [] if call is None else targets_of_call(call, batch)
        return found[0] if len(found) == 1 and not self._find_problem(terms, samples, found[0]) else None

    def find_doubts(self, loss: Tensor, predictions: Any, samples: int) -> str:
        """What the graph shows that no trial can: divisors that depend on values, and numbers of the model.

        Returns the reason why a loss that is a mean over samples may be none; "" if there is no such reason.
        """
        for number in tensors_in(predictions):
            if not number.dim() and number.grad_fn is not None:  # a term that the model has computed
                terms = [term for term in _find_terms(number.grad_fn, ()) if "AccumulateGrad" not in term.name]
                is_mean = all(term.kind == "mean" and term.divisor and term.divisor % samples == 0 for term in terms)
                if not is_mean or _depends_on_values(terms):
                    return "a number among the predictions is not a mean over the samples"
        terms = [] if loss.grad_fn is None else _find_terms(loss.grad_fn, ())
        terms = [term for term in terms if term.call is None]
        divisors = [term.divisor for term in terms if term.depends_on_values and term.divisor is not None]
        return f"it is divided by {_join(divisors)}, which depends on values" if _depends_on_values(terms) else ""

    def observe(
        self,
        loss: Tensor | None,
        batch: Any,
        samples: int,
        calls: Sequence[CrossEntropyCall] = (),
        predictions: Any = None,
        *,
        reads_predictions_only: bool = False,
    ) -> None:
        """Looks at a loss and its batch, unless an earlier one like it has shown all. It may wait for the device.

        With `reads_predictions_only`, terms that are not computed from the predictions are computed from parameters.
        A loss without a graph is compared with the `calls` of cross-entropies that were watched. One whose graph shows
        nothing (of a compiled model, or of a fused kernel) is compared with a cross-entropy of the `predictions`.
        """
        if loss is None or is_traced() or self.knows(batch):
            return
        outputs = {each.grad_fn for each in tensors_in(predictions)} - {None} if reads_predictions_only else ()
        terms = [] if loss.grad_fn is None else _find_terms(loss.grad_fn, outputs)
        calls = [call for call in calls if call.has_value(loss)]
        calls = [*(term.call for term in terms if term.call is not None), *calls]
        found = targets_of_call(calls[0], batch) if calls else []
        if not found and all(term.kind == "other" for term in terms):
            found = find_by_value(loss.detach(), predictions, batch)
            terms = [] if found else terms
        layout, targets = _describe_layout(batch), found[0] if found else None
        self._target_counts[layout], self._saved = targets, "stale"
        seen = self._unclear.pop(layout, [])
        if len({each.shift for each in found}) > 1:  # all are ignored: the next batch shows whether they are shifted
            self._unclear[layout] = []
        elif not terms and seen:
            self._unclear[layout] = seen
        elif (terms := self._without_other_sources(terms, batch)) and not self._problem.text:
            divisors = [] if samples > 1 or targets is not None else [term.divisor for term in terms if term.divisor]
            problem = self._find_problem(terms, max(samples, 1), targets)
            if not problem and seen and divisors and seen != divisors:
                reason = f"of one sample it is a mean over {_join(seen)} elements, of another over {_join(divisors)}"
                problem = self._describe_problem(reason, targets)
            quotients = [term.divisor for term in terms if term.name == "Div" and term.divisor]
            if problem:
                # Terms with the divisor of a cross-entropy of which no target is ignored may have another one later.
                own = next((term.divisor for term in terms if term.call is not None), None)
                can_agree = targets is not None and targets.class_weight is None
                agree = all(term.divisor and own and term.divisor % own == 0 for term in terms)
                self._note(problem, unless_complete=can_agree and agree)
                return
            if quotients and targets is None:
                self._quotients[layout] = _MOST_COMPARED, samples, quotients
            if {*divisors} - {1} and not seen and not _is_mean_of_losses(terms, samples):
                self._unclear[layout] = divisors  # every divisor is a multiple of one sample: waits for another batch

    @property
    def saved(self) -> list[Any] | None:
        """What is known, as plain values; None if nothing is. It reads class weights once, not at every step."""
        if self._saved == "stale":
            self._saved = self._save()
        return self._saved

    def _save(self) -> list[Any] | None:
        known = [(layout, found) for layout, found in self._target_counts.items() if layout not in self._unclear]
        saved = [[layout] if found is None else [layout, *found.saved] for layout, found in known]
        saved += [[layout, divisors] for layout, divisors in self._unclear.items() if divisors]
        problem = self._problem
        if problem.text and not problem.was_reported:
            saved.append([_PROBLEM, problem.text, problem.unless_complete, self._samples])
        return saved or None

    @property
    def class_weights(self) -> list[Tensor]:
        """The tensors that counting reads besides the batch."""
        weights = [found.class_weight for found in self._target_counts.values() if found is not None]
        return [weight for weight in weights if weight is not None]

    def load(
        self, saved: list[Any] | None, device: torch.device | None = None, *, class_weight: Tensor | None = None
    ) -> None:
        """Restores `saved` of another `LossCount`, with class weights on a device; or with those of the loss itself."""
        self._target_counts, self._unclear, self._saved = {}, {}, "stale"
        for layout, *found in saved or ():
            if layout == _PROBLEM:
                self._problem.text, self._problem.unless_complete, self._samples = found
                continue
            count = TargetCount.load(found, device) if len(found) > 1 else None
            if count is not None and count.class_weight is not None and class_weight is not None:
                count = count._replace(class_weight=class_weight)
            self._target_counts[layout] = count
            if len(found) == 1:
                self._unclear[layout] = found[0]

    def _compare(self, loss: Tensor, batch: Any, samples: int) -> None:
        """Compares the numbers that a loss is divided by with those of the first batch like this one.

        A sum that is divided by a number of the samples, or by a multiple, is taken for a mean over them; that may have
        been a coincidence. It looks at a few batches, up to one of another size.
        """
        layout = _describe_layout(batch)
        if layout not in self._quotients or loss.grad_fn is None or is_traced():
            return
        remaining, first_samples, first = self._quotients.pop(layout)
        terms = _find_terms(loss.grad_fn, ())
        quotients = [term.divisor for term in terms if term.name == "Div" and term.divisor]
        if len(quotients) == len(first) and any(
            new * first_samples != old * samples for new, old in zip(quotients, first, strict=True)
        ):
            reason = f"of {pluralize(first_samples, 'sample')} it is a mean over {_join(first)} elements, of "
            reason += f"{pluralize(samples, 'sample')} over {_join(quotients)}"
            self._note(self._describe_problem(reason, None))
        elif remaining > 1 and samples == first_samples:
            self._quotients[layout] = remaining - 1, first_samples, first

    def _without_other_sources(self, terms: "list[_Term]", batch: Any) -> "list[_Term]":
        """Without means over the samples of a source: every batch weighs its sources alike, whatever their sizes."""
        if _depends_on_values(terms):
            return terms
        sizes = [count_samples(batch[name]) for name in self.sources]
        return [term for term in terms if not any(term.divisor and term.divisor % size == 0 for size in sizes)]

    def _find_problem(self, terms: "list[_Term]", samples: int, targets: TargetCount | None) -> str:
        """The text of a warning if it is not clear what the loss is a mean over; "" if it is."""
        if all(term.kind == "sum" for term in terms):
            return (
                f"{self._name} returned a sum over the batch, which is taken for a mean over its samples: reported "
                "losses depend on the batch size. Divide it by the number of samples"
            )
        if targets is None and _is_mean_of_losses(terms, samples):
            return ""
        counts = [term.divisor for term in terms if term.divisor is not None]
        if len(counts) == len(terms):
            own = next((term.divisor for term in terms if term.call is not None), None)
            if targets is None or own is None:
                is_clear = all(count % samples == 0 for count in counts) and not _depends_on_values(terms)
            else:
                # A divisor that follows from shapes may be the same as long as no target is ignored.
                is_clear = all(
                    math.isclose(term.divisor or 0, own, rel_tol=1e-5)
                    and (term.call is not None or term.depends_on_values)
                    for term in terms
                )
            if is_clear:
                return ""
            reason = f"of a batch of {pluralize(samples, 'sample')} it is a mean over {_join(counts)} elements"
            reason += ", which depends on values" if _depends_on_values(terms) else ""
        else:
            reason = f"it ends in {', '.join(dict.fromkeys(term.name for term in terms if term.divisor is None))}"
        return self._describe_problem(reason, targets)

    def _describe_problem(self, reason: str, targets: TargetCount | None) -> str:
        weighed = "the targets that are not ignored" if targets is not None else "the samples"
        return (
            f"it is not clear what the loss of {self._name} is a mean over ({reason}). It is taken for a mean over "
            f"{weighed}: if it is not, then reported losses, accumulate= and several processes weigh batches wrongly. "
            "To say what it is a mean over, return an output with .loss and .count, for example from a function: "
            "Learner(step=fn), fn(model, batch)"
        )


@dataclass(slots=True)
class _Problem:
    """What is unclear about a loss, as the text of a warning."""

    text: str = ""
    unless_complete: bool = False  # only in batches in which some targets are ignored
    was_reported: bool = False


class _Term(NamedTuple):
    """A term of a loss."""

    kind: Literal["mean", "sum", "other"]
    name: str  # of its operation
    divisor: float | None = None  # what a mean is over, in this batch
    call: CrossEntropyCall | None = None  # if the term is a cross-entropy
    depends_on_values: bool = False  # the divisor depends on values, and not only on shapes
    averaged: int | None = None  # how many terms the mean was taken of, this one among them


def _depends_on_values(terms: list[_Term]) -> bool:
    """Whether a divisor depends on values, unless another divisor that follows from shapes is equal to it."""
    by_shapes = {term.divisor for term in terms if not term.depends_on_values}
    return any(term.depends_on_values and term.divisor not in by_shapes for term in terms)


def _is_mean_of_losses(terms: list[_Term], samples: int) -> bool:
    """Whether the terms are one loss for each sample, and their mean is taken."""
    is_alike = len({term.name for term in terms}) == 1 and not _depends_on_values(terms)
    return is_alike and all(term.averaged == samples for term in terms)


def _join(numbers: list[float]) -> str:
    return " and ".join(f"{number:g}" for number in dict.fromkeys(numbers))


def _find_terms(node: Any, outputs: Collection[Any]) -> list[_Term]:
    """The terms that a loss is the sum of, by its graph; factors do not matter.

    `outputs` are the nodes of the predictions, if they are known.
    """
    name = node.name().rstrip("0123456789").removesuffix("Backward")
    below = [function for function, _ in node.next_functions if function is not None]
    if name in ("Add", "Sub", "Mul") and len(below) == 2:  # learned factors and penalties do not depend on data
        below = [each for each in below if not _has_weights_only(each, outputs)] or below
    if name in _SAME or (name == "Mul" and len(below) == 1):
        return [term for each in below for term in _find_terms(each, outputs)]
    if name in ("Sum", "Mean"):
        joined = [inner for inner in below if inner.name().startswith(_JOINS)]
        if joined:  # torch.stack(losses).sum()
            inner = [function for function, _ in joined[0].next_functions if function is not None]
            terms = [term for each in inner for term in _find_terms(each, outputs)]
            return terms if name == "Sum" else _divide(terms, name, torch.Size(node._saved_self_sym_sizes).numel())
        if name == "Sum":
            return [_Term("sum", name)]
        return [_Term("mean", name, torch.Size(node._saved_self_sym_sizes).numel())]
    if name == "Div" and len(below) == 1:
        terms = _find_terms(below[0], outputs)
        other = node._saved_other
        divisor = other.item() if isinstance(other, Tensor) and not other.dim() else other
        if not isinstance(divisor, int | float):
            return [_Term("other", name)]
        return _divide(terms, name, divisor, depends_on_values=not _was_python_number(other))
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == 2:
        return [_Term("sum", name)]
    if reduction == 1 and name.startswith("NllLoss"):
        call = CrossEntropyCall(node._saved_target, _signed(node._saved_ignore_index), node._saved_weight)
        divisor = node._saved_total_weight.item()
        return [_Term("mean", name, divisor, call, divisor != call.targets.numel())]
    if reduction == 1 and isinstance(getattr(node, "_saved_self", None), Tensor):
        return [_Term("mean", name, node._saved_self.numel())]
    return [_Term("other", name)]


def _has_weights_only(node: Any, outputs: Collection[Any]) -> bool:
    """Whether a value is computed from parameters alone: a penalty, or the learned weights of the tasks of a loss.

    If the outputs of the model are not known, parameters of two dimensions may be its layers.
    """
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in outputs or (not outputs and len(seen) > _MOST_NODES):
            return False
        if not node.next_functions:
            parameter = getattr(node, "variable", None)
            if not isinstance(parameter, nn.Parameter) or (not outputs and parameter.dim() > 1):
                return False
        nodes += [function for function, _ in node.next_functions if function is not None]
    return True


def _divide(terms: list[_Term], name: str, divisor: float, *, depends_on_values: bool = False) -> list[_Term]:
    """Terms that are divided by a number: sums become means over it, and means remain what they are."""
    averaged = len(terms) if divisor == len(terms) else None
    mean = _Term("mean", name, divisor, depends_on_values=depends_on_values)
    return [(mean if term.kind == "sum" else term)._replace(averaged=averaged or term.averaged) for term in terms]


def _was_python_number(divisor: Any) -> bool:
    """Whether autograd has saved a number as a tensor. Such tensors do not take part in type promotion."""
    if not isinstance(divisor, Tensor):
        return True
    narrow = torch.float16 if divisor.is_floating_point() else torch.int8
    return torch.result_type(torch.zeros((), dtype=narrow, device=divisor.device), divisor) != divisor.dtype


def targets_of_call(call: CrossEntropyCall, batch: Any) -> list[TargetCount]:
    """Finds the targets of a cross-entropy in a batch; both ways to count them, if their values do not show which."""
    ignore_index, used = call.ignore_index, call.targets.reshape(-1)
    for path, leaf in sorted(_integer_leaves(batch), key=lambda leaf: not {*leaf[0]} & {*TARGET_NAMES}):
        shifts = [shift for shift, values in _shifted_targets(leaf, ignore_index) if _equal(values, used)]
        if shifts:
            return [TargetCount(path, shift, ignore_index, call.class_weight) for shift in dict.fromkeys(shifts)]
    return []


def find_by_value(loss: Tensor, predictions: Any, batch: Any) -> list[TargetCount]:
    """Finds targets in a batch whose cross-entropy has the value of a loss."""
    if not isinstance(predictions, Tensor) or predictions.dim() < 2 or not predictions.is_floating_point():
        return []
    ignore_index, classes = -100, predictions.shape[-1]
    for path, leaf in _integer_leaves(batch):
        is_class = (leaf >= 0) & (leaf < classes)
        if leaf.shape != predictions.shape[:-1] or not bool((is_class | (leaf == ignore_index)).all()):
            continue
        for shift, values in _shifted_targets(leaf.to(predictions.device), ignore_index):
            if values.shape == leaf.shape:
                scores = predictions.detach().reshape(-1, classes).float()
                value = F.cross_entropy(scores, values.reshape(-1).long(), ignore_index=ignore_index)
                if torch.isclose(value, loss.to(value), rtol=1e-3):
                    return [TargetCount(path, shift, ignore_index)]
    return []


def _describe_layout(value: Any, depth: int = 0, *, is_part: bool = False) -> str:
    """The names and the number of the parts of a batch, but not of its samples.

    >>> _describe_layout({"text": (torch.ones(4, 2), torch.ones(4))}), _describe_layout(([1, 2, 3], [4, 5, 6]))
    ("{'text': [., .]}", '[[.], [.]]')

    `is_part`: the value is a part of a list or tuple, so that its own parts may be samples.
    """
    if depth > _DEPTH:
        return "."
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_describe_layout(part, depth + 1)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        parts = [_describe_layout(part, depth + 1, is_part=True) for part in value]
        return f"[{', '.join(dict.fromkeys(parts) if is_part or is_one_per_sample(value) else parts)}]"
    return "."


def has_integers(batch: Any) -> bool:
    """Whether a batch has a tensor of whole numbers, which may be targets of which some are ignored.

    >>> has_integers((torch.ones(4), torch.ones(4))), has_integers({"labels": torch.tensor([1, -100])})
    (False, True)
    """
    return next(_integer_leaves(batch), None) is not None


def _shifted_targets(targets: Tensor, ignore_index: int) -> Iterator[tuple[int, Tensor]]:
    """Yields how a model may pass targets on: as they are, or shifted by one, with or without a new last column.

    Each also without those that are ignored.
    """
    ways = [(0, targets)]
    if targets.dim() > 1:
        ways += [(1, targets[..., 1:]), (1, F.pad(targets, (0, 1), value=ignore_index)[..., 1:])]
    yield from ways
    yield from ((shift, values[values != ignore_index]) for shift, values in ways[:2])


def _equal(values: Tensor, used: Tensor) -> bool:
    return values.numel() == used.numel() and bool((values.reshape(-1).to(used.device) == used).all())


def _integer_leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yields integer tensors with their place in a batch, the last one first: targets usually follow the inputs."""
    if isinstance(value, Tensor):
        if not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or value.is_nested):
            yield path, value
    elif len(path) < _DEPTH and isinstance(value, Mapping | tuple | list):
        items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
        for key, part in reversed(items):
            yield from _integer_leaves(part, (*path, key))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number  # autograd shows it as an unsigned number
