"""ui: takes a folder of runs, gives a web page on this machine; the one type to know is `Server`.

It reads the runs' directories, never the training process, and answers the page's questions in JSON: the list of runs,
one run, the points of its curves (thinned here, so that a browser gets no more than it can draw), and news as they
happen. All it can do to a run is to ask it to stop or to save, for who has the token. It needs the extra `ui`
(starlette, uvicorn), imported when a server is made.
"""

from stoker.view.ui._serve import Server

__all__ = ["Server"]
