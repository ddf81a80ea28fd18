"""What surrounds a fit: the console where it is wanted, the device and back."""

import contextlib
import io

import torch

from stoker import callbacks
from tests.engine.fits import learner, line, linear, samples


def test_the_console_shows_a_fit_and_show_false_is_silent():
    for show in (True, False):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            result = linear().fit(line(), valid=line(), epochs=2, show=show)
        assert bool(out.getvalue()) == show
    assert "epoch 2/2" not in out.getvalue()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result.continue_(epochs=1)
    assert "epoch 3/3" in out.getvalue()


def test_the_console_stops_listening_when_the_fit_ends():
    with contextlib.redirect_stdout(io.StringIO()):
        result = linear().fit(line(), epochs=1, show=True)
    assert result.record._listeners == []


def test_two_fits_at_once_in_two_threads_do_not_mix():
    """Each has its own model, record and optimizer; only random numbers are everybody's."""
    import threading

    results = {}

    def work(name, rate):
        results[name] = linear(lr=rate, model=torch.nn.Linear(3, 1), seed=None).fit(line(), epochs=20, show=False)

    threads = [threading.Thread(target=work, args=(name, rate)) for name, rate in (("a", 0.01), ("b", 0.1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(each.history["train/loss"]) == 20 for each in results.values())
    assert results["a"].model is not results["b"].model


def test_a_model_comes_back_to_its_device():
    result = learner(device="cpu").fit(samples(), epochs=1, show=False)
    assert {parameter.device.type for parameter in result.model.parameters()} == {"cpu"}
    assert result.predict(samples()).device.type == "cpu"


def test_the_log_of_a_run_has_the_lines_whatever_is_shown(tmp_path):
    warn = callbacks.on(epoch_end=lambda ctx: ctx.warn("hot") if ctx.epoch == 1 else None)
    linear().fit(line(), valid=0.25, epochs=2, run=tmp_path / "run", callbacks=[warn], show=False)
    text = (tmp_path / "run" / "log.txt").read_text()
    assert text.count("epoch 1/2  train loss") == text.count("epoch 2/2  train loss") == 1
    assert text.count("warning: hot") == 1
    assert text.count("Completed 2 epochs") == 1
