"""All ranks from the same numbers: what is not trained (running statistics, say) is rank 0's."""

from stoker.loop._fit import Fit


def level(fit: Fit) -> None:
    """Rank 0's buffers on every rank, before the model is judged, saved or given back."""
    if fit.world.size > 1:
        models = [fit.model] if fit.average is None else [fit.model, fit.average.model]
        fit.world.broadcast([buffer for model in models for buffer in model.buffers()])
