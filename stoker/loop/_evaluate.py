"""Judging a model on a data set: the metrics over all its samples, from a view that can't disturb the model."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stoker.data import PaddingBatch, move_batch
from stoker.distributed import World, is_sharded, reshard
from stoker.loop._ask import BareLoss, as_objective, as_output
from stoker.loop._forward import as_forward
from stoker.loop._merge import merged
from stoker.loop._precision import forward_in
from stoker.loop._tally import Tally, samples_in, weight_in
from stoker.metrics import Metric
from stoker.steps import Output, Supervised, SupervisedOutput, valid

_ALONE = World()


def _same(predictions: Any) -> Any:
    return predictions


def _loss_of(output: Output) -> Tensor:
    return output.loss


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    supervised: Supervised | None,
    metrics: Sequence[Metric],
    device: torch.device,
    precision: str = "fp32",
    world: World = _ALONE,
) -> dict[str, float]:
    """The loss and the metrics of a model on some batches, by name; of all ranks' batches, on every rank."""
    tally = Tally(metrics, device)
    with viewed(model) as view, torch.no_grad():
        for batch in batches:
            counting, own = (tally.empty(), batch.batch) if isinstance(batch, PaddingBatch) else (tally, batch)
            judged(view, supervised, move_batch(own, device), counting, lambda: forward_in(precision, device))
    return {name.removeprefix("x/"): value for name, value in merged(tally, world).values("x").items()}


@contextmanager
def viewed(model: nn.Module) -> Iterator[nn.Module]:
    """What is judged: a view that can't disturb the model; where that is sharded, itself, in evaluation for so long.

    The hooks that bring the shards together belong to the modules themselves.
    """
    if not is_sharded(model):
        yield valid(model)
        return
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, training in modes:
            module.training = training
        reshard(model)  # without a backward pass nothing else does


def judged(
    view: nn.Module,
    supervised: Supervised | None,
    batch: Any,
    tally: Tally,
    casting: Callable[[], AbstractContextManager[Any]],
    *,
    after_pred: Callable[[Any], Any] = _same,
    after_loss: Callable[[Output], Tensor] = _loss_of,
) -> None:
    """One batch, counted: by the model's valid_step, the supervised default, or else its train_step.

    What the two functions give is what counts, as the prediction and as the loss.
    """
    if supervised is not None and not hasattr(view, "valid_step"):
        parts = supervised.parts(batch)
        with casting():
            predictions = view(*parts.args, **parts.kwargs)
        predictions = after_pred(predictions)
        with casting():
            output: Output = supervised.judge(predictions, parts)
    else:
        name = "valid_step" if hasattr(view, "valid_step") else "train_step"
        with casting():
            answer = as_forward(view, getattr(view, name), batch)
            several = isinstance(answer, Generator)
            output = _objectives(view, answer, batch, tally) if several else as_output(answer, view, name)
        after_pred(getattr(output, "predictions", None))
        if several:
            after_loss(output)
            if not isinstance(output, BareLoss):
                tally.add(output)
            return
    is_sum = isinstance(output, SupervisedOutput) and supervised is not None and supervised.sums
    tally.add_loss("loss", after_loss(output), weight_in(output, batch), is_sum=is_sum)
    if not isinstance(output, BareLoss):
        tally.add(output)


def _objectives(view: nn.Module, step: Generator[Any, Any, Any], batch: Any, tally: Tally) -> Output:
    """A step that yields objectives: each loss is counted, none differentiated."""
    loss = torch.zeros(())
    while True:
        try:
            objective = as_objective(as_forward(view, next, step), view)
        except StopIteration as end:
            return BareLoss(loss) if end.value is None else as_output(end.value, view)
        loss = objective.loss
        tally.add_loss(objective.name, loss, samples_in(batch))
