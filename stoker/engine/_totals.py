"""Running totals of a phase: losses weighted by samples, and metric states. They stay on the device until read."""

import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._dispatch import NoGrad
from stoker._tree import OpaqueValue, first_tensor, flatten, map_tensors, unsavable_type
from stoker.distributed import World
from stoker.errors import StateMismatch, WrongType
from stoker.metrics import Metric, flatten_value, weight_of
from stoker.steps import LossCount, Output, SupervisedOutput, count_samples, extra_numbers, says_count

_CPU = torch.device("cpu")
_NUMBER = "number:"  # begins the key of a number that is not a loss
_foreach_copy_: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


class TotalsSnapshot(NamedTuple):
    """The totals at some moment."""

    states: list[Any]
    sums: dict[str, float | Tensor]
    weights: dict[str, float | Tensor]
    samples: int


class RunningTotals:
    """Adds up the losses and updates the metrics of the batches of a phase.

    >>> totals = RunningTotals([], torch.device("cpu"))
    >>> totals.add_loss("loss", torch.tensor(1.0), weight=30)
    >>> totals.add_loss("loss", torch.tensor(4.0), weight=10)
    >>> totals.values("train")
    {'train/loss': 1.75}

    With `in_place=True` every total is a tensor that is allocated once and then written in place, so that CUDA graphs
    and compiled programs can add to it. A metric that is not `static` has a state that grows, or holds values that are
    not tensors: its state is replaced by each update, and it is updated outside of such programs.
    """

    __slots__ = (
        "_counts",
        "_describe_position",
        "_device",
        "_in_place",
        "_initial",
        "_is_static",
        "_metrics",
        "_states",
        "_sums",
        "_weights",
        "has_dynamic_metrics",
        "samples",
        "started",
    )

    def __init__(
        self,
        metrics: Sequence[Metric],
        device: torch.device,
        *,
        in_place: bool = False,
        describe_position: Callable[[], str] = lambda: "",
    ) -> None:
        self._metrics, self._device, self._in_place = metrics, device, in_place
        self._counts = [_counts(metric) for metric in metrics]
        self._describe_position = describe_position
        # States, their tensors and the values that these begin with, if all states are tensors that are written.
        self._initial: tuple[list[Any], list[Tensor], list[Tensor]] | None = None
        self._sums: dict[str, float | Tensor] = {}
        self._weights: dict[str, float | Tensor] = {}
        self._states = self._initial_states()
        self._is_static = [
            bool(getattr(metric, "static", False)) and _holds_only_tensors_on(device, state)
            for metric, state in zip(metrics, self._states, strict=True)
        ]
        # Dynamic metrics are updated outside of CUDA graphs and compiled programs.
        self.has_dynamic_metrics = not all(self._is_static)
        self.samples, self.started = 0, time.monotonic()

    def _initial_states(self) -> list[Any]:
        states: dict[Any, Any] = {}  # metrics with equal `counts` share one state
        keys = [index if counts is None else (counts,) for index, counts in enumerate(self._counts)]
        for key, metric in zip(keys, self._metrics, strict=True):
            if key not in states:
                state = metric.init(self._device)
                # In-place updates need separate memory for each tensor: an initial state may hold one tensor twice.
                states[key] = map_tensors(torch.clone, state) if self._in_place else state
        return [states[key] for key in keys]

    def reset(self) -> None:
        """Starts again for another epoch."""
        self.samples, self.started = 0, time.monotonic()
        if not self._in_place:
            self._states, self._sums, self._weights = self._initial_states(), {}, {}
            return
        for total in (*self._sums.values(), *self._weights.values()):
            if isinstance(total, Tensor):
                total.zero_()
        if self._initial is not None and all(map(operator.is_, self._initial[0], self._states)):
            _foreach_copy_(*self._initial[1:])
            return
        fresh = self._initial_states()
        static = [(index, state) for index, state in enumerate(fresh) if self._is_static[index]]
        self._states = [old if self._is_static[index] else fresh[index] for index, old in enumerate(self._states)]
        self._write_states(static, expand=True)
        if self._metrics and not self.has_dynamic_metrics:
            tensors = [tensor for state in self._states for tensor in flatten(state)[0]]
            self._initial = list(self._states), tensors, [tensor.clone() for tensor in tensors]

    def add_loss(self, name: str, loss: Tensor, weight: float | Tensor, *, is_sum: bool = False) -> None:
        """Adds a batch's loss, weighted by what it is a mean over; a loss that is a sum is divided by its weight."""
        if is_sum:
            loss = loss / weight
        if not self._in_place and loss.device.type == "cpu":  # plain numbers are faster, and float64 as well
            share = float(weight)
            total: float | Tensor = loss.item() * share if share else 0.0  # a mean over nothing is NaN
        else:
            wide = torch.float32 if loss.device.type == "mps" else torch.float64
            share = weight.to(wide) if isinstance(weight, Tensor) else weight
            if isinstance(share, Tensor):
                total = (loss.detach().to(wide) * share).masked_fill_(share <= 0, 0)
            else:
                total = loss.detach().to(wide) * share if share else 0.0
        if not self._in_place:
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._weights[name] = self._weights.get(name, 0.0) + share
            return
        if name not in self._sums:
            for totals in (self._sums, self._weights):
                totals[name] = torch.zeros((), dtype=torch.float64, device=self._device)
        self._sums[name].add_(total)  # pyright: ignore[reportAttributeAccessIssue]  a tensor, in place
        self._weights[name].add_(share)  # pyright: ignore[reportAttributeAccessIssue]

    def add_numbers(self, output: Output, weight: float | Tensor) -> None:
        """Adds the other numbers of an output, as `add_loss` does, unless a metric has the name of one."""
        for name, value in extra_numbers(output).items():
            if all(metric.name != name for metric in self._metrics):
                number = value if isinstance(value, Tensor) else torch.full((), value, device=self._device)
                self.add_loss(f"{_NUMBER}{name}", number.to(self._device), weight)

    def update(self, output: Output, *, static: bool | None = None) -> None:
        """Updates all metrics from a step's output; or only those that are static, or only the others."""
        done: dict[Any, tuple[Any, Any]] = {}  # metrics with equal counts and the same state are updated once
        written: list[tuple[int, Any]] = []
        with NoGrad():
            for index, metric in enumerate(self._metrics):
                if static is not None and self._is_static[index] is not static:
                    continue
                state, counts = self._states[index], self._counts[index]
                key = None if counts is None else (counts, id(state))
                if key is not None and key in done:
                    new = done[key][1]
                else:
                    try:
                        new = metric.update(state, output)
                        if new is None:
                            raise WrongType(f"{type(metric).__name__}.update returned None; return the new state")
                    except Exception as error:
                        error.add_note(f"in the metric {metric.name!r}{self._describe_position()}")
                        raise
                    if key is not None:
                        done[key] = state, new  # the old state too, so that its id is not used again
                if self._in_place and self._is_static[index]:
                    written.append((index, new))
                else:
                    self._states[index] = new
            if written:
                self._write_states(written)

    def update_dynamic(self, output: Output | None) -> None:
        """Updates the metrics that are not static; what they keep of the output must not be overwritten later."""
        if output is not None and self.has_dynamic_metrics:
            self.update(output, static=False)

    def _write_states(self, new_states: Sequence[tuple[int, Any]], *, expand: bool = False) -> None:
        """Writes new states over the old ones in place; a state that does not fit is replaced.

        `expand`: an initial value may have no dimensions where sums over classes have one.
        """
        targets, values, replaced = list[Tensor](), list[Tensor](), dict[int, Any]()
        for index, new in new_states:
            old = self._states[index]
            if new is old or id(old) in replaced:
                self._states[index] = replaced.get(id(old), old)
                continue
            pair = _matching_tensors(old, new, expand=expand)
            if pair is not None and _moves_values(*pair):
                # A compiler may overwrite a value before it has moved.
                self._is_static[index], self.has_dynamic_metrics, pair = False, True, None
            replaced[id(old)] = old if pair is not None else map_tensors(torch.clone, new)
            self._states[index] = replaced[id(old)]
            if pair is not None:
                targets += pair[0]
                values += pair[1]
        copy_all(targets, values)

    @property
    def can_be_read_often(self) -> bool:
        """Whether a `TotalsReading` neither waits for the device nor costs much."""
        return self._device.type in ("cpu", "cuda")

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics that are counted besides the losses."""
        return self._metrics

    def values(self, phase: str, reading: "TotalsReading | None" = None) -> dict[str, float]:
        """The values so far, as `phase/name`; losses and numbers as in `reading`, if given. Waits for the device."""
        reading = TotalsReading(self) if reading is None else reading
        sums = reading.sums()
        shown = [*reading.losses(), *(name for name in sums if name not in reading.all_losses)]
        values = {f"{phase}/{name}": _mean(*sums[name]) for name in shown}
        for metric, state in zip(self._metrics, self._states, strict=True):
            values.update(flatten_value(f"{phase}/{metric.name}", metric.compute(state)))
        return values

    def empty_copy(self) -> "RunningTotals":
        """Totals of the same metrics that have counted nothing."""
        return RunningTotals(self._metrics, self._device, describe_position=self._describe_position)

    def merge_ranks(self, world: World) -> "RunningTotals":
        """The totals of all ranks, on every rank; this object itself if there is one rank."""
        if world.size == 1:
            return self
        merged = self.empty_copy()
        merged.load_state_dict(
            world.combine(self.state_dict(), lambda state, later: merge_states(self._metrics, [state, later]))
        )
        return merged

    # --- what CUDA graphs and compiled programs have to know

    def tensors(self) -> list[Tensor]:
        """The tensors that a training step writes."""
        sums = [each for each in (*self._sums.values(), *self._weights.values()) if isinstance(each, Tensor)]
        pairs = zip(self._states, self._is_static, strict=True)
        return [*sums, *(tensor for state, static in pairs if static for tensor in flatten(state)[0])]

    def references(self) -> tuple[Any, ...]:
        """What `restore_references` puts back after tracing has replaced totals by traced ones."""
        return list(self._states), dict(self._sums), dict(self._weights)

    def restore_references(self, references: tuple[Any, ...]) -> None:
        """Puts back the totals that `references` returned."""
        self._states, self._sums, self._weights = references

    # --- saving

    def snapshot(self) -> TotalsSnapshot:
        """The totals so far. Later additions do not change it, and nothing waits for the device."""
        if not self._in_place:  # totals are replaced, never written
            return TotalsSnapshot(list(self._states), dict(self._sums), dict(self._weights), self.samples)
        states, sums, weights = map_tensors(torch.clone, (self._states, self._sums, self._weights))
        return TotalsSnapshot(states, sums, weights, self.samples)

    def restore(self, snapshot: TotalsSnapshot) -> None:
        """Goes back to a snapshot, whose tensors become the totals."""
        self._states, self._sums, self._weights, self.samples = snapshot

    def state_dict(self, snapshot: TotalsSnapshot | None = None) -> dict[str, Any]:
        """The totals so far, or those of a snapshot, as tensors and plain values; the tensors are not copies."""
        at = self.snapshot() if snapshot is None else snapshot
        states = dict(zip((metric.name for metric in self._metrics), at.states, strict=True))
        for name, state in states.items():
            if (odd := unsavable_type(state)) is not None:
                raise StateMismatch(
                    f"the metric {name!r} keeps a {odd} in its state, which can't be saved: a state is made of tensors "
                    "and plain values, in mappings, lists and tuples"
                )
        return {
            "metrics": states,
            # Parts of a state that are on the host although the device is another one.
            "on_host": {} if self._device == _CPU else {name: _parts_on_host(state) for name, state in states.items()},
            "sums": at.sums,
            "weights": at.weights,
            "samples": at.samples,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, for metrics of the same names; otherwise changes nothing."""
        expected, names = {"metrics", "on_host", "sums", "weights", "samples"}, [each.name for each in self._metrics]
        if not isinstance(state, Mapping) or set(state) != expected:
            given = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateMismatch(
                f"the saved running totals do not match: expected {', '.join(sorted(expected))}; got {given}"
            )
        if set(state["metrics"]) != set(names):
            saved = ", ".join(state["metrics"]) or "none"
            raise StateMismatch(f"the saved metrics do not match: expected {', '.join(names) or 'none'}; got {saved}")
        on_host = state["on_host"]
        self._states = [_copy_to(self._device, state["metrics"][name], on_host.get(name, ())) for name in names]
        sums, weights = (_copy_to(self._device, state[key]) for key in ("sums", "weights"))
        if self._in_place:
            sums, weights = ({name: self._as_tensor(each) for name, each in part.items()} for part in (sums, weights))
        self._sums, self._weights = dict(sums), dict(weights)
        self.samples, self.started = state["samples"], time.monotonic()

    def _as_tensor(self, total: float | Tensor) -> Tensor:
        if isinstance(total, Tensor):
            return total.to(self._device, torch.float64)
        return torch.full((), total, dtype=torch.float64, device=self._device)


class TotalsReading:
    """The sums and weights of all losses and numbers at some moment, while they are being copied from the device."""

    __slots__ = ("_arrived", "_copied", "_names", "_values", "all_losses")

    def __init__(self, totals: RunningTotals) -> None:
        keys = list(totals._sums)
        self._names = [key.removeprefix(_NUMBER) for key in keys]
        self.all_losses = [key for key in keys if not key.startswith(_NUMBER)]  # also those that have not counted
        values = [each for key in keys for each in (totals._sums[key], totals._weights[key])]
        on_gpu = [each for each in values if isinstance(each, Tensor) and each.is_cuda]
        self._copied = None
        self._arrived = None
        if on_gpu:  # one copy for all, into torch's own pinned memory
            self._copied = torch.stack([each.double() for each in on_gpu]).to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._values = [None if isinstance(each, Tensor) and each.is_cuda else float(each) for each in values]

    def has_arrived(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._arrived is None or self._arrived.query()

    def sums(self) -> dict[str, tuple[float, float]]:
        """The sum and the weight of each loss and number by name; waits for the device."""
        if self._arrived is not None:
            self._arrived.synchronize()
        copied = iter(() if self._copied is None else self._copied.tolist())
        values = [next(copied) if each is None else each for each in self._values]
        return {name: (values[2 * index], values[2 * index + 1]) for index, name in enumerate(self._names)}

    def losses(self) -> list[str]:
        """The names of the losses: "loss", or those of the objectives that have counted; waits for the device."""
        sums, names = self.sums(), self.all_losses
        return [name for name in names if len(names) == 1 or sums[name][1]]


def merge_states(metrics: Sequence[Metric], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states of several `RunningTotals` in their order, so that every rank gets the same bits."""
    first, *others = states
    merged = dict(first["metrics"])
    for other in others:
        merged = {metric.name: metric.merge(merged[metric.name], other["metrics"][metric.name]) for metric in metrics}
    return {
        "metrics": merged,
        "on_host": first["on_host"],
        "sums": _add_by_name([state["sums"] for state in states]),
        "weights": _add_by_name([state["weights"] for state in states]),
        "samples": sum(state["samples"] for state in states),
    }


def _add_by_name(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(float(part[name]) for part in parts if name in part) for name in names}


def copy_all(targets: list[Tensor], values: list[Tensor]) -> None:
    """Writes values over targets, with one launch for all of a type; a value may share memory with another target."""
    memory = {_memory_of(target) for target in targets}
    pairs = [
        (target, value.clone() if _memory_of(value) in memory else value)
        for target, value in zip(targets, values, strict=True)
        if value is not target
    ]
    with torch.no_grad():
        if torch.compiler.is_compiling():  # the compiler fuses single copies with what computes the values
            for target, value in pairs:
                target.copy_(value)
            return
        for dtype in {target.dtype for target, _ in pairs}:
            same = [(target, value) for target, value in pairs if target.dtype == dtype]
            _foreach_copy_([target for target, _ in same], [value for _, value in same])


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _matching_tensors(old: Any, new: Any, *, expand: bool) -> tuple[list[Tensor], list[Tensor]] | None:
    """The tensors of both states; None if the new ones can't be written over the old ones."""
    try:
        (old_tensors, old_structure), (new_tensors, new_structure) = flatten(old), flatten(new)
    except OpaqueValue:
        return None
    if old_structure != new_structure:
        return None
    for a, b in zip(old_tensors, new_tensors, strict=True):
        exact = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        if not exact and not (expand and b.dim() == 0 and a.device == b.device):
            return None
    if expand:
        new_tensors = [b.to(a.dtype).expand_as(a) for a, b in zip(old_tensors, new_tensors, strict=True)]
    return old_tensors, new_tensors


def _moves_values(old: list[Tensor], new: list[Tensor]) -> bool:
    """Whether a new state holds a tensor of the old one under another name."""
    indices = {_memory_of(tensor): index for index, tensor in enumerate(old)}
    return any(indices.get(_memory_of(tensor), index) != index for index, tensor in enumerate(new))


def _holds_only_tensors_on(device: torch.device, state: Any) -> bool:
    try:
        tensors, structure = flatten(state)
    except OpaqueValue:
        return False
    return all(each.device == device for each in tensors) and _leaf_count(structure) == len(tensors)


def _leaf_count(structure: Any) -> int:
    own = structure.kind is Tensor or structure.kind is None
    return int(own) + sum(map(_leaf_count, structure.children))


def _counts(metric: Metric) -> Any:
    counts = getattr(metric, "counts", None)  # optional in the contract of a metric, like `of`
    return None if counts is None else (counts, getattr(metric, "of", None))


def _parts_on_host(state: Any) -> list[str]:
    if not isinstance(state, Mapping):
        return []
    return [name for name, each in state.items() if (found := first_tensor(each)) is not None and found.device == _CPU]


def _copy_to(device: torch.device, value: Any, on_host: Collection[str] = ()) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy_to(_CPU if name in on_host else device, each) for name, each in value.items()}
    return map_tensors(lambda tensor: tensor.detach().to(device, copy=True), value)


def _mean(total: float, weight: float) -> float:
    return total / weight if weight else float("nan")


def loss_weight(
    output: Output, value: Any, size: int | None = None, count: LossCount | None = None, *, read: bool = True
) -> float | Tensor:
    """What the loss of an output is a mean over: what the output says, or `count`, otherwise the samples in the batch.

    `size` is the number of samples that the loader put into the batch. `read`: a tensor on the CPU becomes a number,
    which is cheaper for the accumulator.
    """
    if isinstance(output, SupervisedOutput) and output.count is None and output.weight is None:
        return count_samples((output.targets, output.predictions), size)
    if says_count(output):
        weight = weight_of(output)
    else:
        weight = None if count is None else count(value)
        if weight is None:
            return count_samples(value, size)
    return weight.item() if read and isinstance(weight, Tensor) and weight.device.type == "cpu" else weight
