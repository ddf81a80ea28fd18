"""All ranks from the same numbers: what is not trained (running statistics, say) is rank 0's."""

from torch import nn

from stoker.loop._fit import Fit


def level(fit: Fit) -> None:
    """Rank 0's buffers on every rank, before the model is judged, saved or given back."""
    if fit.world.size > 1:
        models = [fit.model, None if fit.average is None else fit.average.model, loss_of(fit)]
        fit.world.broadcast([buffer for model in models if model is not None for buffer in model.buffers()])


def level_loss(fit: Fit) -> None:
    """Rank 0's buffers of the loss, before it is asked in training; those of the model come with its forward."""
    loss = loss_of(fit)
    if loss is not None and (buffers := list(loss.buffers())):
        fit.split.broadcast(buffers)


def loss_of(fit: Fit) -> nn.Module | None:
    """The loss, where it is a module and so may have a state of its own."""
    loss = None if fit.supervised is None else fit.supervised.loss
    return loss if isinstance(loss, nn.Module) else None
