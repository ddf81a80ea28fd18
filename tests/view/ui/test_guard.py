"""Who may ask: the Host header, and the headers of every answer."""

import socket

import pytest
from stoker.view.ui._guard import POLICY, Guard, hosts_for

from tests.view.ui.serving import serving


async def nothing(scope, receive, send):
    raise AssertionError("the request came through")


def guard(host="127.0.0.1", port=7070):
    return Guard(nothing, hosts=hosts_for(host), port=port)


@pytest.mark.parametrize("host", ["127.0.0.1:7070", "localhost:7070", "LocalHost:7070", "[::1]:7070"])
def test_this_machine_is_answered(host):
    assert guard().allows(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:7070",
        "127.0.0.1",
        "127.0.0.1:7071",
        "127.0.0.1:7070.evil.example",
        "127.0.0.1.evil.example:7070",
        "localhost.evil.example:7070",
        "evil.example#localhost:7070",
        "user@localhost:7070",
        "localhost:7070:7070",
        "localhost: 7070",
        "localhost:+7070",
        "localhost.:7070",
        "[::1]",
        "[::1:7070",
        "0.0.0.0:7070",
        "10.0.0.5:7070",
        "2130706433:7070",
    ],
)
def test_any_other_host_is_refused(host):
    assert not guard().allows(host)


def test_a_named_host_is_answered_beside_loopback():
    named = guard("10.0.0.5")
    assert named.allows("10.0.0.5:7070") and named.allows("localhost:7070")
    assert not named.allows("10.0.0.6:7070") and not named.allows("evil.example:7070")
    assert guard("fe80::1").allows("[fe80::1]:7070") and guard("box", port=80).allows("box")


def test_listening_everywhere_any_number_is_answered_and_no_foreign_name():
    everywhere = guard("0.0.0.0")
    assert everywhere.allows("192.168.1.7:7070") and everywhere.allows("[fe80::2]:7070")
    assert everywhere.allows(f"{socket.gethostname()}:7070")
    assert not everywhere.allows("evil.example:7070") and not everywhere.allows("192.168.1.7:80")


@pytest.mark.parametrize("path", ["", "api/runs", "api/events", "static/index.html", "api/control/x"])
def test_a_foreign_host_gets_nothing_from_a_real_server(tmp_path, path):
    with serving(tmp_path) as (server, client):
        method = "POST" if "control" in path else "GET"
        answer = client.request(method, path, headers={"host": f"evil.example:{server.port}"})
        assert answer.status_code == 403
        assert answer.json()["error"] == (
            f"the request is for 'evil.example:{server.port}'; this server answers to 127.0.0.1:{server.port} or "
            f"localhost:{server.port} and to the host that it was started with. Through an ssh tunnel, use port "
            f"{server.port} on both sides; for another name, start it with --host"
        )
        assert answer.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("lines", [b"", b"Host: localhost:%d\r\nHost: evil.example\r\n"], ids=["none", "two"])
def test_a_request_without_a_host_or_with_two_is_refused(tmp_path, lines):
    with serving(tmp_path) as (server, _), socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"GET /api/runs HTTP/1.0\r\n" + lines.replace(b"%d", b"%d" % server.port) + b"\r\n")
        assert b" 400 " in raw.recv(4096).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "static/index.html"),
        ("GET", "static/nothing.js"),
        ("GET", "nothing"),
        ("GET", "api/runs"),
        ("GET", "api/run/none"),
        ("GET", "api/points/none"),
        ("POST", "api/control/none"),
        ("PUT", "api/runs"),
        ("OPTIONS", "api/runs"),
    ],
)
def test_every_answer_has_the_strict_headers_and_none_lets_other_pages_read(tmp_path, method, path):
    with serving(tmp_path) as (_, client):
        found = client.request(method, path, headers={"origin": "http://evil.example"}).headers
    assert found["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert found["x-content-type-options"] == "nosniff" and found["referrer-policy"] == "no-referrer"
    assert not [name for name in found if name.startswith("access-control-")]
    assert found["cache-control"] == ("no-cache" if found["content-type"].startswith("text/") else "no-store")


@pytest.mark.parametrize("path", ["api/runs", "api/events", "api/control/x"])
def test_a_page_of_another_site_asks_for_nothing(tmp_path, path):
    with serving(tmp_path) as (_, client):
        method = "POST" if "control" in path else "GET"
        answer = client.request(method, path, headers={"sec-fetch-site": "cross-site"})
        assert answer.status_code == 403 and "a page of another site asks" in answer.json()["error"]
        assert client.get("", headers={"sec-fetch-site": "cross-site"}).status_code == 200, "a link to the page is fine"
        assert client.get("api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200
