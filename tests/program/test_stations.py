"""The loop's stations are what a program takes."""

import inspect

from stoker.loop._pins import Surroundings as LoopSurroundings
from stoker.loop._stations import Stations as LoopStations
from stoker.program import Stations, Surroundings


def names(protocol):
    return [name for name, each in vars(protocol).items() if not name.startswith("_") and callable(each)]


def test_the_loop_has_every_station_with_the_same_arguments():
    for ours, theirs in ((Stations, LoopStations), (Surroundings, LoopSurroundings)):
        for name in names(ours):
            asked, given = (list(inspect.signature(getattr(each, name)).parameters) for each in (ours, theirs))
            assert asked == given, name
