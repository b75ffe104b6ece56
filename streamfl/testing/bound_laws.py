"""The law that everything a role accepts can be written and restored: its state, its messages and its dead
letters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from streamfl.contract.role import BadRecord, Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import MAXIMUM_BYTES, encoded_size
from streamfl.runtime.pending_step import dead_letter
from streamfl.testing.extremes import ORDINARY, Extreme, extremes
from streamfl.testing.subjects import LONG, RoleRun, Subject, Traffic

__all__ = ["law_accepted_can_be_written", "what_is_refused"]

NOW = 1000.0


def law_accepted_can_be_written(subject: Subject) -> None:
    """7. Every record that follows from any input fits into a record, and the state can be restored.

    The law first finds the largest accepted name, number and key one by one. Then it writes them all
    together.
    """
    ordinary = subject.anybody(ORDINARY)
    refused = what_is_refused(subject, ordinary)
    assert not refused, f"what is ordinary was refused: {[str(error) for error in refused.values()]}"
    largest: dict[str, dict[Any, Any]] = defaultdict(dict)
    for field, content in extremes():
        records = _written(subject, ORDINARY._replace(**{field: content}))
        if records is None:
            continue
        refused = what_is_refused(subject, records)
        if any(
            one != two and place not in refused
            for place, (one, two) in enumerate(zip(records, ordinary, strict=True))
        ):
            # Keeps the longest name of each character, the largest number of each sign, and so on. They are
            # tried in ascending order.
            kind = content[:1] if field == "name" else content > 0 if field in ("whole", "number") else b""
            largest[field][kind] = content
    assert "name" in largest, "no name but the ordinary one was accepted"
    choices = [[*largest[field].values()] or [getattr(ORDINARY, field)] for field in Extreme._fields]
    for together in product(*choices):
        records = _written(subject, Extreme(*together))
        assert records is not None
        what_is_refused(subject, records)


def _written(subject: Subject, extreme: Extreme) -> Sequence[tuple[str, Record]] | None:
    """The records with these contents; None if the format cannot hold them."""
    with suppress(OverflowError):
        return subject.anybody(extreme)
    return None


def what_is_refused(subject: Subject, records: Sequence[tuple[str, Record]]) -> dict[int, BadRecord]:
    """Give these records to a new role, and let time pass. AssertionError if something it writes does not fit
    or cannot be restored.

    Returns the errors of the refused records, by their place in ``records``.
    """
    run = RoleRun(subject, Traffic([], sorted({record.partition for _, record in records})))
    refused: dict[int, BadRecord] = {}
    for place, (channel, record) in enumerate(records):
        try:
            received = Received(channel, subject.decode[channel](record), record)
        except BadRecord as error:
            refused[place] = error
            continue
        known = len(run.replies)
        run.feed(NOW + place, [received])
        for reply in run.replies[known:]:
            if isinstance(reply, Rejection):
                refused[place] = reply.error
    _assert_restored(run, NOW)
    for now in (NOW + len(records), NOW + LONG / 2, NOW + LONG):
        known_changes = len(run.changes)
        run.feed(now, [])
        if len(run.changes) > known_changes:
            _assert_restored(run, now)
    for place, reason in refused.items():
        letter = dead_letter("dead-letters", records[place][1], reason)
        _assert_fits(f"the dead letter of message {place}", letter.key, letter.value, letter.headers)
    for reply in run.replies:
        if isinstance(reply, Send):
            _assert_fits(f"a message to {reply.channel}", reply.key, reply.value, reply.headers)
    for change in run.changes:
        _assert_fits(f"what is remembered in {change.channel}", change.key, change.value)
    return refused


def _assert_fits(
    what: str, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()
) -> None:
    size = encoded_size(key, value, headers)
    begin = (key or b"")[:40]
    assert size <= MAXIMUM_BYTES, (
        f"{what} takes {size} bytes, a record holds {MAXIMUM_BYTES}; its key begins with {begin!r}"
    )


def _assert_restored(run: RoleRun, now: float) -> None:
    successor = RoleRun(run.subject, run.traffic)
    for slot, value in run.state.items():
        try:
            successor.role.restore(StateChange(*slot, value))
        except BadRecord as error:
            raise AssertionError(
                f"what was remembered under {slot[2][:40]!r} is not taken back: {error}"
            ) from error
    successor.feed(now, [])
