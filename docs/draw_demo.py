"""Makes docs/demo.svg: the demo's own output, recorded as it stands in a terminal when it has ended."""

import io
import sys
from pathlib import Path

from rich.console import Console, RenderableType

HERE = Path(__file__).parent


class Still:
    """In place of rich's `Live`, whose every frame would be recorded: shows the last one."""

    def __init__(self, renderable: RenderableType, *, console: Console, **_: object) -> None:
        self.last, self.console = renderable, console

    def update(self, renderable: RenderableType) -> None:
        self.last = renderable

    def __enter__(self) -> "Still":
        return self

    def __exit__(self, *_: object) -> None:
        self.console.print(self.last)


def main() -> None:
    sys.path.insert(0, str(HERE.parent / "examples"))
    import demo

    demo.Live = Still
    demo.console = Console(record=True, force_terminal=True, width=112, file=io.StringIO(), highlight=False)
    demo.main(pictures=True)
    demo.console.save_svg(str(HERE / "demo.svg"), title="make demo")


if __name__ == "__main__":
    main()
