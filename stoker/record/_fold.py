"""What stands of a story in which a killed process was resumed: the file keeps every line, the record what counts."""

from collections.abc import Iterable

from stoker.record._event import Event, kept_by


def folded(events: Iterable[Event]) -> list[Event]:
    """The events that stand, in order: a "resume" voids those before it past its first `kept`.

    >>> story = [Event("note", text="a"), Event("note", text="b"), Event("resume", extra={"kept": 1}), Event("end")]
    >>> [event.text or event.kind for event in folded(story)]
    ['a', 'resume', 'end']
    """
    stand: list[Event] = []
    for event in events:
        if event.kind == "resume":
            del stand[kept_by(event) :]
        stand.append(event)
    return stand
