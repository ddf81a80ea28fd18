"""`Ranks`: the processes of a fit. With one process there is nothing to do."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from stoker.distributed import World


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a fit.

    `world` are all of them; `data_world` are those among which a batch is split (a mesh may have more dimensions).
    `model_is_distributed`: the model itself reduces its gradients, because it is sharded or was wrapped by the user.
    """

    world: World = field(default_factory=World)
    data_world: World = field(default_factory=World)
    model_is_distributed: bool = False

    def broadcast_to_data_world(self, tensors: list[Tensor]) -> None:
        """Writes the first rank's values over those of all ranks that a batch is split among."""
        if tensors and self.data_world.size > 1:
            self.data_world.broadcast(tensors)

    def broadcast_buffers(self, models: Iterable[nn.Module | None]) -> None:
        """Writes rank 0's buffers (running statistics) over those of all ranks, before evaluating or saving."""
        if self.world.size > 1:
            self.world.broadcast([buffer for model in models if model is not None for buffer in model.buffers()])
