"""What is kept for the next time."""

from stoker.view.ui._kept import Kept


def test_the_one_that_was_not_asked_for_the_longest_goes_first():
    kept = Kept[str, str](most=3, weigh=len)
    for key in "abc":
        kept.put(key, key)
    assert kept.get("a") == "a"
    kept.put("d", "d")
    assert kept.get("b") is None and kept.get("a") == "a" and len(kept) == 3


def test_the_newest_stays_however_heavy_it_is():
    kept = Kept[str, str](most=3, weigh=len)
    kept.put("a", "a")
    kept.put("b", "too heavy")
    assert kept.get("a") is None and kept.get("b") == "too heavy"


def test_what_grows_is_weighed_anew():
    kept = Kept[str, list[int]](most=3, weigh=len)
    grows = [1]
    kept.put("a", [1])
    kept.put("b", grows)
    grows += [2, 3]
    kept.trim()
    assert kept.get("a") is None and kept.get("b") == [1, 2, 3]


def test_dropping():
    kept = Kept[str, int](most=9, weigh=lambda value: 1)
    for key in "abc":
        kept.put(key, ord(key))
    kept.drop(lambda key, value: key == "b")
    assert len(kept) == 1 and kept.get("b") == ord("b")
