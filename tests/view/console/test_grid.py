"""The frame around a picture."""

from stoker.view.console._grid import Grid


def test_numbers_stand_at_their_rows_and_columns():
    grid = Grid(10, 3)
    grid.put(1, 4, "x", "red")
    rows = [row.plain for row in grid.framed({0: "10", 2: "0"}, {0: "1", 9: "500"})]
    assert rows == ["10 ┤┈┈┈┈┈┈┈┈┈┈", "   │    x     ", " 0 ┤┈┈┈┈┈┈┈┈┈┈", "   └┬────────┬", "    1      500"]


def test_a_number_that_has_no_room_is_left_out():
    below = {0: "1,000", 3: "2,000", 9: "3,000"}
    assert Grid(10, 1).framed({}, below)[-1].plain.split() == ["1,000"]


def test_ascii():
    rows = [row.plain for row in Grid(4, 2).framed({0: "1"}, {1: "5"}, ascii_only=True)]
    assert "".join(rows).isascii() and rows == ["1 +    ", "  |    ", "  +-+--", "    5"]
