"""The two windows that come up over the screen: a question, and help."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from stoker.view.watch._colours import QUIET

_KEYS = {
    "← →": "another number; so do 1 to 9, and a click",
    "↑ ↓": "all of the history, its recent part, bars by epoch",
    "+ -": "smoother or rougher: the mean of 1 to 30 % of the points",
    "y": "heights linear, or by ratio (log)",
    "x": "over the updates, or over the time",
    "r": "the next run, where there are several",
    "l": "the whole log, and back",
    "i": "plan, config and surroundings, and back",
    "s": "ask the run to stop after this update; you are asked first",
    "c": "ask the run to save a checkpoint",
    "t": "light or dark",
    "q": "leave; the run goes on",
}


class Question(ModalScreen[bool]):
    """Asks, and gives the answer back; Escape is no."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "answer(True)", "yes"), ("n,escape,q", "answer(False)", "no")]

    def __init__(self, text: str, yes: str) -> None:
        super().__init__()
        self.text = text
        self.yes = yes

    def compose(self) -> ComposeResult:
        """The text and two buttons, the harmless one in focus."""
        with Vertical(classes="window"):
            yield Static(Text(self.text))
            with Horizontal():
                yield Button(f"{self.yes} (y)", id="yes", variant="warning", compact=True)
                yield Button("no (n)", id="no", compact=True)

    def on_mount(self) -> None:
        """So that Enter, pressed too soon, does nothing."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A click is an answer too."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """By key."""
        self.dismiss(answer)


class Help(ModalScreen[None]):
    """What the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [("question_mark,escape,q,enter,space", "leave", "back")]

    def compose(self) -> ComposeResult:
        """A line a key."""
        with VerticalScroll(classes="window"):
            yield Static(
                Text("\n").join(Text.assemble((f"{key:>4}  ", "bold"), text) for key, text in _KEYS.items())
                + Text("\n\n      the mouse shows what can be clicked; Escape closes this", style=QUIET)
            )

    def action_leave(self) -> None:
        """Back to the run."""
        self.dismiss()
