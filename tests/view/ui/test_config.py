"""Configs side by side."""

from stoker.view.ui._config import compared


def test_what_differs_and_what_a_run_has_not_got():
    found = compared({"a": {"lr": 1, "x": True, "only": 3}, "b": {"lr": 1, "x": 1}})
    assert found == {"same": {"lr": 1}, "different": {"x": {"a": True, "b": 1}, "only": {"a": 3}}}
    assert compared({}) == {"same": {}, "different": {}}
