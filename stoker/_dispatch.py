"""The base of modes that watch tensor operations."""

from torch.utils._python_dispatch import TorchDispatchMode


class WatchingMode(TorchDispatchMode):
    """Sees every operation, as any `TorchDispatchMode`; torch does not load its compiler for it.

    By default torch keeps the compiler out of the code of a mode, and imports it for that, which takes seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
