"""JSON that any browser takes."""

import json
import math

from stoker.view.ui._json import plain, text, to_json


def test_what_json_has_no_word_for_is_null():
    assert json.loads(to_json([math.nan, math.inf, -math.inf, 1.5, 2, True, None])) == [None] * 3 + [1.5, 2, True, None]


def test_every_answer_is_ascii_and_any_text_survives_it():
    hostile = "<img src=x onerror=alert(1)>\u2028\x00é\U0001f525"
    sent = to_json({hostile: hostile})
    assert sent.isascii() and json.loads(sent) == {hostile: hostile}


def test_half_a_letter_is_spelt_out_since_no_address_can_hold_it():
    assert plain({"run\udce9": ["\ud800"]}) == {"run\\udce9": ["\\ud800"]}
    assert text("ok") == "ok"


def test_a_value_without_end_is_cut_and_other_things_are_their_text():
    deep: object = "bottom"
    for _ in range(5000):
        deep = [deep]
    assert b"bottom" not in to_json(deep) and json.loads(to_json({1: complex(1, 2)})) == {"1": "(1+2j)"}
