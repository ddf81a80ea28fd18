"""`stoker runs`."""

from stoker.cli import main
from stoker.record import Event, Run
from tests.record.stories import fill


def test_a_table_of_runs_in_every_state(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alive = []
    for number, (name, how, after) in enumerate(
        [
            ("first", {"planned": 5}, []),
            ("early", {"stop": "Early stopping", "planned": 9}, []),
            ("group/going", {"end": False, "planned": None}, []),
            ("killed", {"end": False}, []),
            ("[red]odd", {"epochs": 0, "end": False}, [Event("error", text="RuntimeError: boom\nmore")]),
        ]
    ):
        run = Run.create(f"runs/{name}", facts={"started": float(number)})
        fill(run.record, **how)
        for event in after:
            run.record.append(event)
        alive.append(run)
        if "going" not in name:
            run.close()
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "state", "epochs", "best", "began"]
    words = [" ".join(line.split()) for line in lines[1:6]]
    best = "valid/loss 0.5 (epoch 3) 1970-01-01"
    assert words[0].startswith(f"first finished 5 of 5 {best}")
    assert words[1].startswith(f"early stopped 5 of 9 {best}")
    assert words[2].startswith(f"group/going running 5 {best}")
    assert words[3].startswith(f"killed died 5 of 5 {best}")
    assert words[4].startswith("[red]odd died 0 of 5 RuntimeError: boom 1970")


def test_a_run_itself_is_a_folder_of_one(tmp_path, capsys):
    Run.create(tmp_path / "one").close()
    assert main(["runs", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["one", "died"]


def test_an_empty_folder_and_none(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "nowhere")]) == 1
    assert "stoker: there is no folder" in capsys.readouterr().err


def test_damage_and_odd_names_have_no_power(tmp_path, capsys):
    for name in ("esc\x1b[31mred", "digits"):
        run = Run.create(tmp_path / name)
        fill(run.record)
        run.close()
    with (tmp_path / "digits" / "events.jsonl").open("ab") as file:
        file.write(b"nonsense\n" * 3)
    (tmp_path / "digits" / "run.json").write_text("{")
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    words = [line.split()[:6] for line in out.splitlines()]
    assert ["digits", "finished", "5", "of", "5", "valid/loss"] in words
    assert ["esc\\x1b[31mred", "finished", "5", "of", "5", "valid/loss"] in words and "\x1b" not in out
    assert "digits: 3 damaged lines were skipped\ndigits: run.json can't be read\n" in out
