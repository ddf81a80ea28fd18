"""An update of parameters that are in parts on many processes (`DTensor`), out of torch's arithmetic for whole ones."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stoker.distributed import from_local, is_dtensor, place_like, to_local
from stoker.optim._algorithm import Algorithm, Rate

Columns = dict[str, list[Any]]  # None where the first update makes it


def update_sharded(
    algorithm: Algorithm,
    update: Callable[..., None],
    parameters: list[Tensor],
    grads: list[Tensor],
    columns: Columns,
    lr: Rate,
    has_complex: bool,
) -> None:
    """Each process updates the elements that it holds, or all of a parameter where they depend on each other.

    `update` is the algorithm's own, or one that the device decides about.
    """
    if algorithm.needs_whole:
        for place in range(len(parameters)):
            own = {kept: column[place : place + 1] for kept, column in columns.items()}
            _update_whole(update, parameters[place], grads[place], own, lr)
        return
    here: Columns = {kept: [_here(each) for each in column] for kept, column in columns.items()}
    update(
        [to_local(each) for each in parameters], [to_local(each) for each in grads], here, lr, has_complex=has_complex
    )
    for kept, column in columns.items():
        for place, parameter in enumerate(parameters):
            if column[place] is None and here[kept][place] is not None:
                column[place] = from_local(here[kept][place], parameter)


def _here(kept: Tensor | None) -> Tensor | None:
    return None if kept is None else to_local(kept)


def _update_whole(update: Callable[..., None], parameter: Any, grad: Any, columns: Columns, lr: Rate) -> None:
    """Every process has all of one parameter for a moment, comes to the same update, and keeps its part."""
    whole = {kept: [_whole(each) for each in column] for kept, column in columns.items()}
    updated = _whole(parameter)
    update([updated], [_whole(grad)], whole, lr, has_complex=parameter.is_complex())
    held = [(parameter, updated), *((columns[kept][0], whole[kept][0]) for kept in columns)]
    for tensor, new in held:
        if is_dtensor(tensor):
            to_local(tensor).copy_(to_local(place_like(new, tensor)))


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if is_dtensor(tensor) else tensor
