"""Places: what a checkpoint and a moment have in common, and that neither changes."""

from dataclasses import FrozenInstanceError, asdict

import pytest

from stoker.checkpoint._place import Moment, Place, Saved, fields_of

PLACE = Place(epoch=2, batch=5, update=15, minutes=1.5, reason="every epoch", values={"valid/loss": 0.5})


def test_a_checkpoint_and_a_moment_are_places():
    saved = Saved(**fields_of(PLACE), name="00000015", run="5f0c", time=1.7e9, bytes=120)
    moment = Moment(**fields_of(PLACE), epoch_ended=True)
    assert fields_of(saved) == fields_of(moment) == asdict(PLACE)


def test_a_place_goes_on_and_can_be_gone_on_from_unless_it_says_otherwise():
    place = Place(epoch=1, batch=0, update=0)
    assert (place.reason, place.ended, place.resumable, place.minutes, place.values) == ("", None, True, 0.0, {})


def test_two_places_share_no_values():
    assert Place(epoch=1, batch=0, update=0).values is not Place(epoch=1, batch=0, update=0).values


def test_a_place_stays_as_it_is():
    with pytest.raises(FrozenInstanceError):
        PLACE.update = 16
