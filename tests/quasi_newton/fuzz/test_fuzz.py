"""Wrong messages and damaged state, given to guest, host and coordinator: what is refused, and mistakes that are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from quasi_newton.proof import fuzz
from wrong_messages import check_found

from streamfl.contract.role import PeerError, StateChange
from streamfl.quasi_newton.encryption.scheme import Plain
from streamfl.quasi_newton.messages import codec
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.member import NOW

MOST_SEED_MESSAGES = 1_300


@pytest.mark.parametrize("federation", fuzz.FEDERATIONS)
@pytest.mark.parametrize("name", fuzz.MEMBERS)
def test_the_corpus_is_of_this_release(federation: str, name: str) -> None:
    """Protects the run from an outdated corpus, of which everything would be refused at the first look: record it anew."""
    heard = fuzz.recorded(federation, name)
    kinds = {one.channel.partition("/")[0] for one in heard}
    of_parties = {
        "bank": {"samples", "labels", "outputs", "decisions", "answers"},
        "shop": {"samples", "residuals", "decisions", "questions"},
    }
    assert kinds >= of_parties.get(name, {"uploads"})
    assert [one for one in fuzz.record(federation) if one.channel.startswith(f"{name}/") and not one.channel.endswith("state")] == [
        replace(one, channel=f"{name}/{one.channel}") for one in heard
    ]
    role = fuzz.member(federation, name).role
    for one in fuzz.recorded(federation, name, "state"):
        role.restore(StateChange("state", one.partition, one.key or b"", one.value))


def test_the_corpus_has_all_that_guest_and_host_say_about_scores() -> None:
    """Protects whoever takes such a message: what the corpus lacks is never spoilt."""
    reader = codec(fuzz.settings(fuzz.FEDERATIONS[0], "bank").message_bytes)
    channels = {"bank": "answers/shop", "shop": "questions"}
    heard = [
        reader.decode(one.value or b"")
        for federation in fuzz.FEDERATIONS
        for name, channel in channels.items()
        for one in fuzz.recorded(federation, name, channel)
    ]
    assert {one.kind for one in heard} == {"question", "found", "chosen", "points", "closed"}


def test_no_wrong_message_ends_a_role() -> None:
    """Protects members from whoever can write to their topics, at any place of a training: no traceback, nothing changed."""
    assert run(MOST_SEED_MESSAGES, seed=3, only="quasi-newton").defects == []


def _takes_any_size(self: Any, *given: Any) -> None:
    return


def _restores_unchecked(self: PartitionedRole[Any], change: StateChange) -> None:
    if change.value is not None and not self._long.restore(change):
        self._tasks[change.partition].restore(change.key, change.value)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "vectors are not checked": (Plain, "check", _takes_any_size, "quasi-newton-coordinator quasi-newton-plain"),
    "state is not checked": (PartitionedRole, "restore", _restores_unchecked, "restore quasi-newton-guest quasi-newton-plain"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


@pytest.mark.parametrize(
    "key",
    [b"progress", b"entity/e-1", b"entity/\xff", b"batch/0/names/0", b"batch/x/names/0", b"gone/0", b"pair/0", b"vectors"],
)
def test_a_damaged_state_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = fuzz.member("quasi-newton-plain", "bank").role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0\x01"))


@pytest.mark.parametrize("key", [b"run", b"descent", b"anything"])
def test_a_coordinators_damaged_state_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback, as above."""
    role = fuzz.member("quasi-newton-plain", "centre").role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0\x01"))


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_a_damaged_model_is_refused_before_figures_tell_of_it(name: str) -> None:
    """Protects the operator from a traceback of the metrics: the first tick refuses what is no model."""
    role = fuzz.member("quasi-newton-plain", name).role
    role.restore(StateChange("state", 0, b"trained/0", b"\x94\x01\xa1x\xc0\xc0\x01"))
    with pytest.raises(PeerError, match="model"):
        role.receive([], NOW)
