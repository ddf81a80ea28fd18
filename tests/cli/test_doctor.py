"""`stoker doctor`."""

from importlib.metadata import version

import torch

from stoker.cli import _doctor, main


def test_it_names_versions_devices_precisions_and_extras(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch {version('torch')}\n" in out and "\n  cpu  " in out
    assert all(f"\n  {name}  " in out for name in ("fp32", "tf32", "bf16", "fp16"))
    assert "stoker[plot]  matplotlib" in out and "stoker[dev]" not in out


def test_what_is_missing_comes_with_how_to_get_it(monkeypatch):
    real = _doctor._version
    monkeypatch.setattr(_doctor, "_version", lambda name: None if name in ("matplotlib", "pandas") else real(name))
    lines = list(_doctor.optional())
    assert 'stoker[plot]  matplotlib missing: pip install "stoker[plot]"' in lines
    assert "pandas  missing: pip install pandas (tables as data, history.to_pandas())" in lines


def test_the_extras_are_those_of_the_package():
    assert _doctor.extras()["plot"] == ["matplotlib"] and "dev" not in _doctor.extras()


def test_a_cpu_is_always_there_and_tf32_is_not_a_cpus():
    assert any(line.startswith("cpu  ") for line in _doctor.devices())
    assert (
        torch.cuda.is_available() or torch.backends.mps.is_available() or "tf32  not on a CPU" in _doctor.precisions()
    )
