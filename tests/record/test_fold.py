"""What stands: any story of appends, kills and rewinds, from the file and by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Event, Record
from stoker.record._event import to_line
from stoker.record._fold import folded
from tests.record.stories import same

KINDS = ["begin", "train", "valid", "epoch", "log", "note", "checkpoint", "end"]
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(KINDS),
    time=st.integers(0, 100).map(float),
    epoch=st.integers(0, 3),
    update=st.integers(0, 9),
    values=st.dictionaries(st.sampled_from(["train/loss", "valid/loss", "lr"]), st.floats(width=16), max_size=2),
)
ACTIONS = st.one_of(
    EVENTS,
    st.tuples(st.just("kill"), EVENTS, st.integers(0, 200)),
    st.tuples(st.just("rewind"), st.integers(0, 12)),
)


def answers(record):
    """All that a record says of its numbers; NaN is a word, to be equal to itself."""
    names = ["train/loss", "valid/loss", "lr"]
    series = [(record.series(name), record.all(name)) for name in names]
    single = [(record.last(name), record.best(name, "min"), record.best(name, "max")) for name in names]
    return repr([series, single, record.columns, dict(record.rows), record.summary()["seconds"]])


@settings(max_examples=150, deadline=None)
@given(story=st.lists(ACTIONS, max_size=25))
def test_a_story_read_from_its_file_is_the_story_folded_by_hand(tmp_path_factory, story):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    record, by_hand = Record(path), []
    for action in story:
        match action:
            case ("kill", event, cut):
                record.close()
                line = to_line(event)
                with path.open("ab") as file:
                    file.write(line[:cut])
                if cut >= len(line) - 1:  # whole, or only its newline is missing
                    by_hand.append(event)
                record = Record(path)
            case ("rewind", kept):
                event = Event("resume", 50.0, extra={"checkpoint": "00000001", "kept": kept})
                by_hand = [*by_hand[:kept], event]
                record.rewind(kept, event)
            case event:
                by_hand.append(event)
                record.append(event)
    expected = Record()
    for event in by_hand:
        expected.append(event)
    read = Record.open(path)
    assert repr(read.events) == repr(record.events) == repr(tuple(by_hand))
    assert answers(read) == answers(record) == answers(expected)
    for kind in KINDS:
        assert repr(read.events_of(kind)) == repr([event for event in by_hand if event.kind == kind])
    record.close()


def test_the_fold_of_what_was_folded_is_the_same():
    story = [Event("note", 1.0, text=letter) for letter in "abc"]
    story += [Event("resume", 2.0, extra={"kept": 2}), Event("note", 3.0), Event("resume", 4.0, extra={"kept": 3})]
    assert [event.text or event.kind for event in folded(story)] == ["a", "b", "resume", "resume"]
    assert folded(folded(story)) == folded(story)


def test_a_long_story_of_many_rewinds_is_read_in_one_walk():
    """Each event is kept once, however many rewinds there are."""
    told = []

    class Counting(Record):
        def _keep(self, event):
            told.append(event)
            super()._keep(event)

    record = Counting()
    story = []
    for turn in range(100):
        story += [Event("valid", float(turn), epoch=1, values={"valid/loss": float(turn)})] * 10
        story.append(Event("resume", float(turn), extra={"kept": turn + 1}))
    record._keep_all(story)
    assert len(told) == len(record.events) == 101
    assert same(record.series("valid/loss"), [0.0])
