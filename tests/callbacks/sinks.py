"""Trackers that do well, and trackers that do badly, on real threads."""

import threading


class Listed:
    """Keeps what it gets, as `calls`."""

    def __init__(self, known=None):
        self.calls, self.known, self.threads = [], known, set()

    def open(self, run):
        self._add("open", run)
        return self.known

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
        """Every number by name, as (update, value)."""
        found = {}
        for what, *rest in self.calls:
            if what == "write":
                values, update, _ = rest
                for name, value in values.items():
                    if name.startswith("running/") == running:
                        found.setdefault(name, []).append((update, value))
        return found

    @property
    def run(self):
        return self.calls[0][1]

    @property
    def said(self):
        return [call[1] for call in self.calls if call[0] == "text"]


class Failing(Listed):
    """Raises wherever it is told to."""

    def __init__(self, *where, error=ConnectionError):
        super().__init__()
        self.where, self.error = where, error

    def _add(self, *call):
        super()._add(*call)
        if call[0] in self.where:
            raise self.error("no route to host")


class Hanging(Listed):
    """Blocks wherever it is told to, until `released` is set; `reached` is set when it does."""

    def __init__(self, where):
        super().__init__()
        self.where, self.reached, self.released = where, threading.Event(), threading.Event()

    def _add(self, *call):
        if call[0] == self.where:
            self.reached.set()
            self.released.wait(60)
        super()._add(*call)
