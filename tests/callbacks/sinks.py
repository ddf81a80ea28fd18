"""Sinks that work, fail and hang."""

import threading


class Listed:
    """Keeps its calls in `calls`."""

    def __init__(self, existing=None):
        self.calls, self.existing, self.threads = [], existing, set()

    def open(self, run):
        self._add("open", run)
        return self.existing

    def write(self, values, *, update, epoch, time):
        self._add("write", dict(values), update, epoch)

    def text(self, text, *, update, time):
        self._add("text", text, update)

    def close(self, ending):
        self._add("close", ending)

    def _add(self, *call):
        self.threads.add(threading.current_thread())
        self.calls.append(call)

    def points(self, *, running=False):
        """Every value by name, as (update, value)."""
        found = {}
        for method, *rest in self.calls:
            if method == "write":
                values, update, _ = rest
                for name, value in values.items():
                    if name.startswith("running/") == running:
                        found.setdefault(name, []).append((update, value))
        return found

    @property
    def run(self):
        return self.calls[0][1]

    @property
    def texts(self):
        return [call[1] for call in self.calls if call[0] == "text"]


class Failing(Listed):
    """Raises in the given methods."""

    def __init__(self, *methods, error=ConnectionError):
        super().__init__()
        self.methods, self.error = methods, error

    def _add(self, *call):
        super()._add(*call)
        if call[0] in self.methods:
            raise self.error("no route to host")


class Hanging(Listed):
    """Blocks in the given method until `released` is set; sets `reached` when it does."""

    def __init__(self, method):
        super().__init__()
        self.method, self.reached, self.released = method, threading.Event(), threading.Event()

    def _add(self, *call):
        if call[0] == self.method:
            self.reached.set()
            self.released.wait(60)
        super()._add(*call)
