import math
import threading

import pytest

from stoker.callbacks._courier import _FULL, _MOST, Courier
from stoker.callbacks._sink import Tracked
from tests.callbacks.sinks import Failing, Hanging, Listed

RUN = Tracked("1f", "digits", None, None, {}, 0, 1.0)
AT = {"update": 1, "epoch": 1, "time": 2.0}


def test_everything_is_brought_in_order_by_another_thread():
    sink = Listed()
    courier = Courier(sink, RUN, who="Listed")
    for number in range(50):
        courier.write({"loss": float(number)}, **AT)
    courier.text("hello", update=1, time=2.0)
    courier.close("finished", patience=30)
    assert sink.calls[0] == ("open", RUN) and sink.calls[-2:] == [("text", "hello", 1), ("close", "finished")]
    assert [call[1]["loss"] for call in sink.calls[1:-2]] == [float(number) for number in range(50)]
    (thread,) = sink.threads
    assert thread is not threading.current_thread() and thread.daemon and not thread.is_alive()
    assert courier.problems() == []


def test_what_the_tracker_holds_already_is_not_written_again():
    sink = Listed(known={(1, "loss"): 0.5, (1, "gap"): math.nan, (2, "late"): 1.0})
    courier = Courier(sink, RUN, who="Listed")
    courier.write({"loss": 0.5, "gap": math.nan, "late": 1.0}, **AT)
    courier.write({"loss": 0.5, "gap": math.nan}, **AT)
    courier.write({"loss": 0.25}, **AT)  # another value: it is the one that counts
    courier.close("finished", patience=30)
    assert [call[1] for call in sink.calls if call[0] == "write"] == [{"late": 1.0}, {"loss": 0.25}]


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
def test_a_failing_tracker_is_told_about_once_and_goes_on_being_asked(error):
    sink = Failing("write", "close", error=error)
    courier = Courier(sink, RUN, who="Failing")
    for _ in range(3):
        courier.write({"loss": 1.0}, **AT)
    courier.close("finished", patience=30)
    assert [call[0] for call in sink.calls] == ["open", "write", "write", "write", "close"]
    assert courier.problems() == [
        "Failing failed, and the run goes on; what it could not take is missing there: "
        f"{error.__name__}: no route to host"
    ]
    assert courier.problems() == []


def test_a_tracker_that_does_not_open_gets_nothing():
    sink = Failing("open")
    courier = Courier(sink, RUN, who="Failing")
    courier.write({"loss": 1.0}, **AT)
    courier.close("finished", patience=30)
    assert [call[0] for call in sink.calls] == ["open"]
    assert courier.problems() == [
        "Failing failed, and the run goes on; it gets nothing: ConnectionError: no route to host"
    ]


def test_a_slow_tracker_loses_numbers_on_the_way_and_no_final_ones():
    sink = Hanging("open")
    courier = Courier(sink, RUN, who="Hanging")
    assert sink.reached.wait(30)
    for _ in range(_MOST + 5):
        courier.write({"running/loss": 1.0}, on_the_way=True, **AT)
    for _ in range(7):
        courier.write({"loss": 1.0}, **AT)
    assert courier.problems() == [
        "Hanging is too slow for everything: numbers on the way are left out, "
        "and while 100,000 things wait for it, all that comes"
    ]
    sink.released.set()
    courier.close("finished", patience=30)
    names = [name for call in sink.calls if call[0] == "write" for name in call[1]]
    assert names.count("running/loss") == _MOST and names.count("loss") == 7


def test_what_waits_for_a_tracker_that_hangs_has_an_end_and_the_close_is_still_brought():
    sink = Hanging("open")
    courier = Courier(sink, RUN, who="Hanging")
    assert sink.reached.wait(30)
    for number in range(_FULL + 5):
        courier.write({"loss": float(number)}, **AT)
    courier.text("too late", update=1, time=2.0)
    (problem,) = courier.problems()
    assert problem.startswith("Hanging is too slow for everything: ")
    sink.released.set()
    courier.close("finished", patience=120)
    assert len(sink.calls) == 1 + _FULL + 1
    assert sink.calls[-2][1] == {"loss": float(_FULL - 1)} and sink.calls[-1] == ("close", "finished")


def test_without_a_thread_nothing_is_brought_and_that_is_told_once(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    sink = Listed()
    courier = Courier(sink, RUN, who="Listed")
    courier.write({"loss": 1.0}, **AT)
    courier.close("finished", patience=30)
    assert sink.calls == []
    assert courier.problems() == [
        "Listed failed, and the run goes on; it gets nothing: RuntimeError: can't start new thread"
    ]


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_a_tracker_that_hangs_is_not_waited_for_forever(where):
    sink = Hanging(where)
    courier = Courier(sink, RUN, who="Hanging")
    courier.write({"loss": 1.0}, **AT)
    courier.close("finished", patience=0.05)
    (problem,) = courier.problems()
    assert problem.startswith("Hanging was not done 0.05 seconds after the end; ")
    sink.released.set()
