"""ui: the runs of a folder as a web page on this machine; `Server` is the class to know.

The server reads run directories, never the training process, and answers in JSON: the list of runs, one run, thinned
curves, and changes as server-sent events. With the token a page can ask a run to stop or to save. Needs starlette and
uvicorn (`stoker[ui]`), imported when a server is created.
"""

from stoker.view.ui._server import Server

__all__ = ["Server"]
