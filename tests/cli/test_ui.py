"""`stoker ui`."""

import re
import signal
import socket
import subprocess
import sys

import httpx

from stoker.cli import main
from stoker.view.ui import Server
from tests.record.stories import LIGHT
from tests.view.ui.serving import environment, make

PROGRAM = LIGHT + "from stoker.cli import main; sys.exit(main())"


def started(folder, *arguments):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "ui", str(folder), "--port", "0", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())


def test_ctrl_c_ends_it_at_once_and_without_a_word_also_with_pages_open(tmp_path):
    make(tmp_path / "a")
    served = started(tmp_path)
    assert served.stdout is not None
    told = [served.stdout.readline() for _ in range(5)]
    assert told[0] == f"stoker ui shows the runs in {tmp_path.resolve()}\n"
    port = int(re.fullmatch(r"  http://127\.0\.0\.1:(\d+)/\n", told[1])[1])
    assert re.search(rf"ssh -L {port}:127\.0\.0\.1:{port} \S+, ", told[2])
    token = told[3].rpartition(": ")[2].strip()
    assert len(token) >= 24 and "Ctrl-C" in told[4]
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=30, trust_env=False) as client,
        client.stream("GET", "api/events?id=a") as answer,
        socket.create_connection(("127.0.0.1", port)),
    ):
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event")) == "event: runs"
        refused = client.post("api/control/a", json={"ask": "stop"}, headers={"authorization": f"Bearer {token}"})
        assert refused.status_code == 409
        served.send_signal(signal.SIGINT)
        assert served.wait(60) == 130
    assert served.communicate() == ("", "")


def test_the_command_warns_of_other_hosts_and_opens_a_browser(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(Server, "run", lambda self: self._socket.close())
    assert main(["ui", str(tmp_path), "--port", "0", "--host", "0.0.0.0", "--open", "--read-only"]) == 0
    out, err = capsys.readouterr()
    assert err == (
        "stoker: warning: with --host 0.0.0.0 everybody who can reach this machine can read these runs, unencrypted; "
        "an ssh tunnel to 127.0.0.1 is safer\n"
    )
    assert opened == [out.splitlines()[1].strip()] and opened[0].startswith("http://127.0.0.1:") and "token" not in out
    assert main(["ui", str(tmp_path / "none")]) == 1
    assert "stoker: there is no folder" in capsys.readouterr().err
