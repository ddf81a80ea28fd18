import io
import json

from stoker.callbacks._trackio_process import Desk, main


def answers(*lines):
    out = io.StringIO()
    main(io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_line_gets_an_answer_and_an_error_is_one(monkeypatch):
    asked = []

    class Log:
        def log(self, values, step):
            asked.append((values, step))
            if step == 2:
                raise OSError("disk full")

        def finish(self):
            asked.append("finish")

    monkeypatch.setattr(Desk, "__init__", lambda self: setattr(self, "_run", Log()))
    said = answers(
        {"what": "write", "values": {"loss": 0.5}, "update": 1},
        {"what": "write", "values": {"loss": 0.5}, "update": 2},
        {"what": "close"},
    )
    assert said == [{"done": None}, {"error": "OSError: disk full"}, {"done": None}]
    assert asked == [({"loss": 0.5}, 1), ({"loss": 0.5}, 2), "finish"]


def test_after_the_close_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(Desk, "close", lambda self: None)
    assert answers({"what": "close"}, {"what": "close"}) == [{"done": None}]
