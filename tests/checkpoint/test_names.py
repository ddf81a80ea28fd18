import pytest

from stoker.checkpoint._names import beside, is_leftover, is_ours, name_of, order_of, part_of


@pytest.mark.parametrize(("update", "number", "name"), [
    (0, 0, "00000000"), (120, 0, "00000120"), (120, 1, "00000120.1"), (120, 12, "00000120.12"),
    (99_999_999, 0, "99999999"), (100_000_000, 0, "100000000"), (10**17, 3, "100000000000000000.3"),
])  # fmt: skip
def test_names_say_their_order(update, number, name):
    assert name_of(update, number) == name
    assert order_of(name) == (update, number)


def test_names_sort_as_numbers():
    names = ["00000002.10", "100000000", "00000002.9", "00000002", "99999999", "00000010"]
    assert sorted(names, key=order_of) == ["00000002", "00000002.9", "00000002.10", "00000010", "99999999", "100000000"]


@pytest.mark.parametrize("name", [
    "", "120", "0000012", "000000120", "00000120.0", "00000120.01", "00000120.", "00000120.1.2", "00000120\n",
    "-0000120", "+0000120", " 00000120", "0000012a", "٠٠٠٠٠١٢٠", "00000120/..", "..", "best", ".part-00000120-abcdef01",
    "9" * 19, "00000120." + "9" * 10, "1_000_000",
])  # fmt: skip
def test_other_names_are_no_checkpoints(name):
    assert order_of(name) is None


def test_leftovers_are_what_beside_makes():
    for kind in ("part", "gone"):
        for name in ("00000120", "00000120.3"):
            assert is_leftover(beside(kind, name))
            assert order_of(beside(kind, name)) is None
    assert beside("part", "00000120") != beside("part", "00000120")
    for other in (
        ".part-",
        ".part-x-abcdef01",
        ".part-120-abcdef01",
        ".gone-00000120-abcdef0",
        ".other-00000120-abcdef01",
    ):
        assert not is_leftover(other)


def test_files_of_a_checkpoint():
    assert part_of("model.safetensors") == "model"
    assert is_ours("model.safetensors") and is_ours("state.json") and is_ours("manifest.json")
    for other in (
        *("notes.txt", "model.safetensors.bak", ".safetensors", "a/b.safetensors", "../x.safetensors", "model"),
        *("a.b.safetensors", "é.safetensors", "a\n.safetensors", "x" * 65 + ".safetensors", "1.safetensors"),
    ):
        assert part_of(other) is None and not is_ours(other), other
