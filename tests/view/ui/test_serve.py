"""A real server: its port, its end, and the command that starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stoker.view.ui._serve import bound

import stoker
from stoker.errors import InvalidArgument, MissingExtra
from stoker.view.ui import Server, _serve
from tests.view.ui.serving import exactly, serving


def test_it_listens_on_this_machine_only(tmp_path):
    with serving(tmp_path) as (server, client):
        assert server.address == f"http://127.0.0.1:{server.port}/"
        assert server._socket.getsockname()[0] == "127.0.0.1"
        assert client.get("api/runs").json()["runs"] == []


def test_the_usual_port_or_the_next_that_is_free(monkeypatch):
    with bound("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        monkeypatch.setattr(_serve, "PORT", taken)
        with bound("127.0.0.1", None) as second:
            assert taken < second.getsockname()[1] < taken + 20
        with pytest.raises(InvalidArgument, match=f"can't listen on '127.0.0.1' at port {taken}: .*; --port 0 takes"):
            bound("127.0.0.1", taken)
        monkeypatch.setattr(_serve, "_TRIES", 1)
        with pytest.raises(InvalidArgument, match=f"at any port from {taken} to {taken}: "):
            bound("127.0.0.1", None)


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_a_port_that_is_none(port):
    with pytest.raises(InvalidArgument, match=f"port={port}; expected a number from 0 to 65535"):
        bound("127.0.0.1", port)


def test_a_host_that_is_not_this_machine():
    with pytest.raises(InvalidArgument, match="can't listen on '192.0.2.1' at port 0: "):
        bound("192.0.2.1", 0)


def test_addresses_for_a_browser(tmp_path):
    for host, shown in (("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")):
        server = Server(tmp_path, host=host, port=0)
        assert server.address == f"http://{shown}:{server.port}/"
        server._socket.close()


def test_tokens_are_long_and_new_each_time(tmp_path):
    servers = [Server(tmp_path, port=0) for _ in range(3)]
    tokens = {server.token for server in servers}
    for server in servers:
        server._socket.close()
    assert len(tokens) == 3 and all(token is not None and len(token) >= 24 for token in tokens)


def test_what_to_install_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=re.escape("""needs starlette and uvicorn: pip install 'stoker[ui]'""")):
        Server(tmp_path)


def test_importing_the_room_imports_no_server():
    program = "import sys, stoker.view.ui; print({'starlette', 'uvicorn', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout.strip() == "set()", done.stderr


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1]), "PYTHONIOENCODING": "utf-8"}


def test_an_error_of_ours_is_no_traceback_in_the_browser(tmp_path, monkeypatch, capsys):
    def fails(self, *, seconds):
        raise RuntimeError("inner matters")

    monkeypatch.setattr("stoker.view.ui._rows.Rows.latest", fails)
    with serving(tmp_path) as (server, _):
        status, text = exactly(server, "/api/runs")
    assert status == 500 and "inner matters" not in text and "RuntimeError" in text
    assert "inner matters" in capsys.readouterr().err


def test_the_page_and_its_files(tmp_path):
    with serving(tmp_path) as (server, client):
        page = client.get("")
        assert page.headers["content-type"] == "text/html; charset=utf-8" and "<html" in page.text
        scripts = re.findall(r'(?:src|href)="/(static/[^"]+)"', page.text)
        assert scripts
        for script in scripts:
            found = client.get(script)
            kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[script.rpartition(".")[2]]
            assert found.status_code == 200 and found.headers["content-type"].startswith(kind)
        assert client.get("static/uplot/LICENSE").headers["content-type"] == "text/plain; charset=utf-8"
        assert exactly(server, "/static/../_serve.py")[0] == exactly(server, "/static/%2e%2e/_serve.py")[0] == 404
