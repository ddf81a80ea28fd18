"""The server itself: ports, addresses, files of the page, the Host header and the security headers."""

import re
import socket
import subprocess
import sys

import pytest

from stoker.errors import InvalidArgument, MissingExtra
from stoker.view.ui import Server
from tests.view.ui.serving import environment, get_raw, serving

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("runs")) as (server, client):
        yield server, client


def status_for(server, *hosts, path="/api/runs"):
    """The status of a request with these Host headers, sent as they are."""
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n{lines}\r\n".encode())
        return int(connection.recv(4096).split(b" ")[1])


def test_it_listens_on_this_machine_only(server):
    server, client = server
    assert server.address == f"http://127.0.0.1:{server.port}/" and client.get("api/runs").json()["runs"] == []
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1", "127.0.1.1"}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, server.port), timeout=30)


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidArgument, match=f"can't listen on '127.0.0.1' at port {port}: .*; --port 0 takes any"
        ):
            Server(tmp_path, port=port)


def test_without_a_port_the_next_free_one_is_taken(tmp_path):
    first, second = Server(tmp_path), Server(tmp_path)
    assert 7070 <= first.port < second.port < 7090
    for server in (first, second):
        server.stop()
        server.run()  # closes the socket


def test_a_port_out_of_range_and_a_host_that_is_not_this_machine(tmp_path):
    for port in (-1, 65536):
        with pytest.raises(InvalidArgument, match=f"port={port}; expected a number from 0 to 65535"):
            Server(tmp_path, port=port)
    with pytest.raises(InvalidArgument, match="can't listen on '192.0.2.1' at port 0: "):
        Server(tmp_path, host="192.0.2.1", port=0)


def test_a_missing_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=re.escape("needs starlette and uvicorn: pip install 'stoker[ui]'")):
        Server(tmp_path)


def test_importing_the_package_imports_no_server():
    program = "import sys, stoker.view.ui; print({'starlette', 'uvicorn', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout.strip() == "set()", done.stderr


def test_the_page_and_its_files(server):
    server, client = server
    page = client.get("")
    assert page.headers["content-type"] == "text/html; charset=utf-8" and "<html" in page.text
    files = re.findall(r'(?:src|href)="/(static/[^"]+)"', page.text)
    assert files
    for file in files:
        found = client.get(file)
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[file.rpartition(".")[2]]
        assert found.status_code == 200 and found.headers["content-type"].startswith(kind)
    assert client.get("static/uplot/LICENSE").headers["content-type"] == "text/plain; charset=utf-8"
    for path in ("/static/../_server.py", "/static/%2e%2e/_server.py"):
        assert get_raw(server, path)[0] == 404


def test_only_requests_to_this_machine_are_answered(server):
    server, _ = server
    for name in ("127.0.0.1", "localhost", "LocalHost", "[::1]"):
        assert status_for(server, f"{name}:{server.port}") == 200
    wrong = """evil.example evil.example:PORT 127.0.0.1 127.0.0.1:1 127.0.0.1:PORT.evil.example
    127.0.0.1.evil.example:PORT localhost.evil.example:PORT evil.example#localhost:PORT user@localhost:PORT
    localhost:PORT:PORT localhost:+PORT localhost.:PORT [::1] [::1:PORT 0.0.0.0:PORT 10.0.0.5:PORT 2130706433:PORT"""
    for host in ("", "localhost: PORT", *wrong.split()):
        assert status_for(server, host.replace("PORT", str(server.port))) == 403, host


def test_requests_without_a_host_or_with_two_are_refused(server):
    server, _ = server
    assert status_for(server) == status_for(server, f"localhost:{server.port}", "evil.example") == 400


def test_a_chosen_host_is_answered_beside_this_machine(tmp_path):
    with serving(tmp_path, host="0.0.0.0") as (server, _):
        assert server.address == f"http://127.0.0.1:{server.port}/"
        for host in ("192.168.1.7", "[fe80::2]", socket.gethostname()):
            assert status_for(server, f"{host}:{server.port}") == 200
        assert status_for(server, f"evil.example:{server.port}") == status_for(server, "192.168.1.7:80") == 403


def test_the_error_for_another_host_says_what_to_do(server):
    server, client = server
    port = server.port
    for path in ("", "api/runs", "api/events", "static/index.html", "api/control/x"):
        method = "POST" if "control" in path else "GET"
        answer = client.request(method, path, headers={"host": f"evil.example:{port}"})
        assert answer.status_code == 403 and answer.headers["content-security-policy"] == POLICY
        assert answer.json()["error"] == (
            f"the request is for 'evil.example:{port}'; expected 127.0.0.1:{port}, localhost:{port} or the host that "
            f"the server was started with. Through an ssh tunnel, use port {port} on both sides; for another host "
            "name, start the server with --host"
        )


def test_every_answer_has_strict_headers_and_no_cors(server):
    paths = ("", "static/index.html", "static/no.js", "no", "api/runs", "api/run/no", "api/points/no")
    requests = [("GET", path) for path in paths] + [("POST", "api/control/no"), ("PUT", "api/runs")]
    for method, path in requests:
        found = server[1].request(method, path, headers={"origin": "http://evil.example"}).headers
        assert found["content-security-policy"] == POLICY
        assert found["x-content-type-options"] == "nosniff" and found["referrer-policy"] == "no-referrer"
        assert not [name for name in found if name.startswith("access-control-")]
        assert found["cache-control"] == ("no-cache" if found["content-type"].startswith("text/") else "no-store")


def test_pages_of_other_sites_are_refused(server):
    client = server[1]
    for path in ("api/runs", "api/events", "api/control/x"):
        method = "POST" if "control" in path else "GET"
        answer = client.request(method, path, headers={"sec-fetch-site": "cross-site"})
        assert answer.status_code == 403 and "another site's page" in answer.json()["error"]
    assert client.get("", headers={"sec-fetch-site": "cross-site"}).status_code == 200, "a link to the page is fine"
    assert client.get("api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200
