"""watch: shows runs on a terminal while they grow; `watch` opens the screen, `page` returns the same as plain text.

It reads run directories only, in its own thread, so neither the run nor the screen waits for the other. It can ask a
run to stop or to save a checkpoint.
"""

from stoker.view.watch._watch import newest, page, wait_for, watch

__all__ = ["newest", "page", "wait_for", "watch"]
