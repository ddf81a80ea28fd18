"""`stoker demo`, on few digits."""

import stoker
from stoker.cli import _demo
from stoker.record import Run


def test_it_trains_judges_saves_and_says_where_to_look(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = _demo.DemoConfig(epochs=1, images=600)
    for name in ("demo", "demo-2"):
        _demo.main("runs", config)
        out = capsys.readouterr().out
        assert "on digits it has not seen: loss" in out
        first, last = out.split("next:")
        assert f"to watch it from another terminal: stoker watch runs/{name}\n" in first
        assert f"\n  stoker watch runs/{name} " in last and "\n  stoker ui runs " in last
        run = Run.open(tmp_path / "runs" / name)
        assert run.summary()["state"] == "finished" and _demo.DemoConfig.from_dict(run.config) == config
        stoker.load(_demo.Digits(config.model), run.path / "model.safetensors")
