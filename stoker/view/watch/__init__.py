"""watch: takes the directories of runs, gives a screen that shows them while they grow; `watch` is the one to know.

It reads files and nothing else, in a thread of its own, so that neither a run nor the screen waits for the other. What
it can do to a run is to ask it to stop or to save. Where there is no terminal, `page` gives the same as plain text.
"""

from stoker.view.watch._find import newest, wait_for
from stoker.view.watch._page import page
from stoker.view.watch._watch import watch

__all__ = ["newest", "page", "wait_for", "watch"]
