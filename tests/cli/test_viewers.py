"""`stoker watch`, `ui`, `report` and `export`."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

import stoker
from stoker.cli import main
from stoker.record import Run
from stoker.view.ui import Server
from tests.cli.terminals import StokerTerminal
from tests.record.examples import WITHOUT_TORCH, append_fit

PROGRAM = WITHOUT_TORCH + "from stoker.cli import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(path, *, age=0.0, **options):
    run = Run.create(path, config={"name": str(path)})
    append_fit(run.record, **options)
    run.close()
    os.utime(f"{path}/events.jsonl", (1e9 - age, 1e9 - age))
    return run


def environment(**more):
    return {**os.environ, "PYTHONPATH": f"{next(iter(stoker.__path__))}/..", **more}


def test_watch_shows_the_newest_run(capsys):
    make_run("runs/old", epochs=1, age=100)
    make_run("runs/new", epochs=2, stop="enough")
    assert main(["watch"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("runs/new: finished") and "\x1b" not in out and "epochs   2 of 5" in out
    assert main(["watch", "old", "new"]) == 0
    out = capsys.readouterr().out
    assert "runs/old: " in out and "runs/new: " in out
    os.rename("runs", "elsewhere")  # without a directory of runs, it searches below this one
    assert main(["watch"]) == 0 and capsys.readouterr().out.startswith("elsewhere/new: ")


@pytest.mark.parametrize("name", ["digits", "runs/digits/events.jsonl", "runs"])
def test_watch_a_run_by_name_path_file_or_directory(name, capsys):
    make_run("runs/digits")
    assert main(["watch", name]) == 0 and capsys.readouterr().out.startswith("runs/digits: ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["watch"], "there is no run in 'runs' or below this directory"),
        (["watch", "digitz"], "--wait waits for a run that has not started yet"),
        (["watch", "rnus/digits", "--wait"], "'rnus' does not exist"),
    ],
    ids=["none", "unknown", "nowhere"],
)
def test_watch_errors(arguments, text, capsys):
    assert main(arguments) == 1
    assert text in capsys.readouterr().err


def test_watch_waits_for_a_run(capsys):
    os.mkdir("runs")
    soon = threading.Timer(0.05, make_run, ["runs/soon"])
    soon.start()
    assert main(["watch", "soon", "--wait"]) == 0
    soon.join()
    captured = capsys.readouterr()
    assert "waiting for soon to start" in captured.err and captured.out.startswith("runs/soon: ")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_watch_prints_one_page_to_a_pipe(encoding):
    make_run("runs/digits")
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "watch"]
    done = subprocess.run(command, capture_output=True, env=environment(PYTHONIOENCODING=encoding))
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.startswith(b"runs/digits: finished") and b"\x1b" not in done.stdout
    assert done.stdout.isascii() == (encoding == "ascii")
    with StokerTerminal(["watch"], TERM="dumb") as terminal:
        lines, code = terminal.until_end()
        assert code == 0 and b"\x1b" not in terminal.raw and lines[0].startswith("runs/digits: finished")


def test_watch_on_a_terminal_until_q():
    run = Run.create("runs/digits")
    append_fit(run.record, epochs=1, end=False)
    with StokerTerminal(["watch"]) as terminal:
        terminal.wait_for("epoch 1/5")
        terminal.press("q")
        _, code = terminal.until_end()
        last = terminal.raw.rpartition(b"\x1b[?1049l")[2]
    run.close()
    assert code == 0 and b"runs/digits: running (it continues without the viewer)" in last


def test_ui_serves_until_ctrl_c_even_with_open_pages(tmp_path):
    make_run("a")
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "ui", str(tmp_path), "--port", "0"]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())
    assert server.stdout is not None
    lines = [server.stdout.readline() for _ in range(5)]
    assert lines[0] == f"stoker ui shows the runs in {tmp_path.resolve()}\n"
    port = int(re.fullmatch(r"  http://127\.0\.0\.1:(\d+)/\n", lines[1])[1])
    assert re.search(rf"ssh -L {port}:127\.0\.0\.1:{port} \S+, ", lines[2])
    token = lines[3].rpartition(": ")[2].strip()
    assert len(token) >= 24 and "Ctrl-C" in lines[4]
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=30, trust_env=False) as client,
        client.stream("GET", "api/events?id=a") as answer,
        socket.create_connection(("127.0.0.1", port)),
    ):
        events = answer.iter_lines()
        assert next(line for line in events if line.startswith("event")) == "event: runs"
        denied = client.post("api/control/a", json={"ask": "stop"}, headers={"authorization": f"Bearer {token}"})
        assert denied.status_code == 409
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130
    assert server.communicate() == ("", "")


def test_ui_warns_about_other_hosts_and_opens_a_browser(tmp_path, monkeypatch, capsys):
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
    assert "stoker: there is no " in capsys.readouterr().err


def test_report_writes_one_run_or_a_comparison(tmp_path, capsys):
    make_run("runs/digits")
    make_run("runs/letters")
    assert main(["report", "digits", "-o", "out/page.html"]) == 0
    assert re.fullmatch(r"wrote out/page.html \([\d.]+ kB\); open it in a browser\n", capsys.readouterr().out)
    assert ">digits<" in (tmp_path / "out/page.html").read_text(encoding="utf-8")
    assert main(["report", "runs/digits"]) == 0 and (tmp_path / "report.html").exists()
    assert main(["report", "digits", "letters", "-o", "x.HTM"]) == 0
    assert ">2 runs<" in (tmp_path / "x.HTM").read_text(encoding="utf-8")


def test_report_errors(tmp_path, capsys):
    make_run("runs/digits")
    assert main(["report", "digit"]) == 1
    assert capsys.readouterr().err == "stoker: there is no run 'digit'; did you mean 'digits'?\n"
    assert main(["report", "digits", "-o", "runs"]) == 1
    assert "can't write the report to 'runs': Is a directory" in capsys.readouterr().err
    assert main(["report", "digits", "-o", "x.pdf"]) == 1
    assert capsys.readouterr().err == "stoker: -o x.pdf: a report is a web page, so the name should end in .html\n"
    assert not (tmp_path / "x.pdf").exists()


def test_export_a_run_by_name_with_a_note_about_damage(tmp_path, capsys):
    run = make_run("runs/digits")
    assert main(["export", "digits", "-o", "out.csv"]) == 0
    assert capsys.readouterr().out == "wrote the numbers of runs/digits to out.csv\n"
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 6
    assert main(["export", "runs/digits", "-o", "out.csv", "--source", "running", "--long"]) == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "name,epoch,update,time,value"
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(b"{damaged\n")
    capsys.readouterr()
    assert main(["export", "digits", "-o", "out.json"]) == 0
    assert "a damaged line was skipped\n" in capsys.readouterr().out
    assert main(["export", "digits", "-o", "out.txt"]) == 1
    assert "stoker: 'out.txt': expected a name that ends in" in capsys.readouterr().err
