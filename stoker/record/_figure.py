"""A matplotlib figure that belongs to nobody: pyplot knows nothing of it, and a notebook shows it all the same."""

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that shows itself in a notebook, and that nothing keeps alive or prints a second time."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
