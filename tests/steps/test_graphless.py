import threading
import weakref

import pytest
import torch
from torch import nn

from stoker.steps._graphless import Graphless, graphless, inside_of, is_inside, last_viewed, resumed


class View:
    def __init__(self, model):
        self.root, self.settled = weakref.ref(model), 0

    def settle(self):
        self.settled += 1


def test_autograd_is_off_inside_and_back_afterwards_also_after_an_error():
    view = View(nn.ReLU())
    with Graphless(view):
        assert not torch.is_grad_enabled()
        assert not torch.is_autocast_cache_enabled()
        assert is_inside(view)
        assert inside_of() is view
    with pytest.raises(ZeroDivisionError), Graphless(view):
        1 / 0
    assert torch.is_grad_enabled()
    assert torch.is_autocast_cache_enabled()
    assert inside_of() is None


def test_only_the_outermost_entry_of_a_view_switches():
    one, two = View(nn.ReLU()), View(nn.ReLU())
    with Graphless(one), torch.enable_grad():
        with Graphless(one):
            assert torch.is_grad_enabled()
        with Graphless(two):
            assert not torch.is_grad_enabled()
            assert not is_inside(one)
        assert torch.is_grad_enabled()
        assert is_inside(one)
        assert (one.settled, two.settled) == (0, 1)
    assert one.settled == 1


def test_where_autograd_is_off_already_it_stays_off():
    with torch.no_grad():
        with Graphless(View(nn.ReLU())):
            pass
        assert not torch.is_grad_enabled()


def test_a_thread_knows_only_of_itself():
    view, seen = View(nn.ReLU()), []
    with Graphless(view):
        thread = threading.Thread(target=lambda: seen.extend([is_inside(view), torch.is_grad_enabled(), last_viewed()]))
        thread.start()
        thread.join()
    assert seen == [False, True, None]


def test_the_last_model_is_not_kept_alive():
    model = nn.ReLU()
    with Graphless(View(model)):
        pass
    assert last_viewed() is model
    del model
    assert last_viewed() is None


def test_a_function_keeps_its_name_and_runs_without_autograd():
    def area(width, height=2):
        """Its size."""
        return width * height, torch.is_grad_enabled()

    quiet = graphless(View(nn.ReLU()), area)
    assert quiet(3, height=4) == (12, False)
    assert quiet.__name__ == "area"


def test_a_generator_passes_everything_through_and_gives_the_grad_mode_back_between_items():
    view, closed = View(nn.ReLU()), []

    def talk():
        heard = []
        try:
            while len(heard) < 3:
                try:
                    heard.append((yield torch.is_grad_enabled()))
                except KeyError as error:
                    heard.append(repr(error))
        finally:
            closed.append(torch.is_grad_enabled())
        return heard

    talking = resumed(view, talk())
    assert next(talking) is False
    assert torch.is_grad_enabled()
    assert inside_of() is None
    assert talking.send("a") is False
    assert talking.throw(KeyError("b")) is False
    with pytest.raises(StopIteration) as stop:
        talking.send("c")
    assert stop.value.value == ["a", "KeyError('b')", "c"]
    left = resumed(view, talk())
    next(left)
    left.close()
    assert closed == [False, False]
