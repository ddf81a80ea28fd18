"""The help names every key that there is."""

from textual.binding import Binding

from stoker.view.watch._app import Dashboard
from stoker.view.watch._dialogs import _KEYS


def test_every_key_is_in_the_help():
    spelled = {"right": "← →", "left": "← →", "down": "↑ ↓", "up": "↑ ↓", "plus": "+ -", "minus": "+ -"}
    silent = {"ctrl+c", "escape", "question_mark", *"123456789"}
    keys = {each.key.split(",")[0] for each in Dashboard.BINDINGS if isinstance(each, Binding)}
    assert {spelled.get(key, key) for key in keys - silent} == set(_KEYS)
