"""Views: what each key makes of one."""

from stoker.view.watch._view import KINDS, SMOOTHING, View

TABS = ["loss", "accuracy", "lr"]


def test_tabs_go_round():
    assert [View(tab="lr").moved(by, TABS).tab for by in (1, -1, 3)] == ["loss", "accuracy", "lr"]
    assert View(tab="gone").moved(1, TABS).tab == "accuracy" and View().moved(1, []) == View()


def test_another_number_chooses_its_own_scale():
    assert View(tab="loss", log=True).moved(1, TABS).log is None


def test_kinds_go_round_and_smoothing_stops_at_its_ends():
    assert View().turned(len(KINDS)) == View() and View().turned(-1).kind == "epochs"
    assert View().smoother(-1).smoothing == 0 and View().smoother(99).smoothing == len(SMOOTHING) - 1
    assert View().over_the_other().by == "time" and View().over_the_other().over_the_other() == View()
