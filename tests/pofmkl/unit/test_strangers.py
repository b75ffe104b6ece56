"""Whoever may write to one of a federation's topics decides nothing for good: numbers, seats, rounds,
dimension, the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pofmkl.makers import new_server, staleness

from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
)
from streamfl.encoding.wire import VERSION, decode_array, encode_array
from streamfl.pofmkl.client.model import LARGEST_PARAMETERS, ModelTable
from streamfl.pofmkl.learning.gradient_steps import StochasticGradientStep
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    LARGEST_STEP,
    MARKER_KEY,
    SHARD_VERSION,
    KernelParameters,
    ShardVersion,
    Update,
    decode_model,
    kernel_key,
)
from streamfl.pofmkl.server.members import ShardMembers
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.roles.received_numbers import MOST_RANGES, NumberRange, note, was_heard

KERNELS, ROW = 3, 4
TIMEOUT = 30.0
DAY = 86_400.0
State = dict[tuple[str, bytes], bytes]


def server(
    lockstep: bool = False,
    *,
    clients: int = 3,
    dimension: int | None = 2,
    targets: bool = False,
    fingerprints: tuple[int, ...] = (0,),
) -> PofmklServer:
    role = new_server(
        clients=clients,
        kernels=KERNELS,
        features=ROW // 2,
        dimension=dimension,
        step=(lambda kernels: StochasticGradientStep(0.5)) if targets else None,
        fingerprints=fingerprints,
        learning={"staleness": staleness(lockstep), "round_timeout_seconds": TIMEOUT},
    )
    role.open(0)
    return role


def update(
    client: str,
    sequence: int,
    version: int = 0,
    *,
    epoch: int = 1,
    kernels: tuple[int, ...] = (0,),
    at: float = 1000.0,
    step: float = 1.0,
    dimension: int = 2,
    fingerprint: int = 0,
) -> Received:
    steps = encode_array(np.full((len(kernels), ROW), step, np.float32))
    message = Update(VERSION, fingerprint, dimension, client, epoch, sequence, version, 1, kernels, steps)
    return Received(
        "updates", message, Record("updates", 0, sequence % 2**31, client.encode(), b"", timestamp=at)
    )


def figures(role: PofmklServer) -> dict[str, float]:
    return {"/".join((one.name, *(value for _, value in one.labels))): one.value for one in role.measure()}


def reasons(replies: Sequence[Send | Rejection]) -> list[str]:
    return [reply.error.reason for reply in replies if isinstance(reply, Rejection)]


def remember(role: PofmklServer, state: State) -> list[StateChange]:
    """Commit: what the topics hold afterwards is in ``state``."""
    changes = list(role.changed_state())
    for change in changes:
        state.pop((change.channel, change.key), None)
        if change.value is not None:
            state[change.channel, change.key] = change.value
    return changes


def restored(state: State, role: PofmklServer) -> PofmklServer:
    """As a worker restores it: its own state first, then what lies in the model topic."""
    for own in ("state", "model"):
        for (channel, key), value in state.items():
            if channel == own:
                role.restore(StateChange(channel, 0, key, value))
    return role


def marker_of(changes: Iterable[StateChange]) -> ShardVersion:
    return [SHARD_VERSION.decode(change.value) for change in changes if change.key == MARKER_KEY][-1]


def parameters_in(state: State, kernel: int) -> np.ndarray:
    content = KERNEL_PARAMETERS.decode(state["model", kernel_key(kernel)]).parameters
    return decode_array(content, np.float32, (ROW,), "parameters")


# ---- numbers


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60))
def test_a_number_was_heard_only_if_it_was(numbers: list[tuple[int, int]]) -> None:
    """Protects every sender: no number that was not heard counts as heard, whatever else was written under
    its name."""
    ranges: list[NumberRange] = []
    noted: set[tuple[int, int]] = set()
    for number in numbers:
        assert not was_heard(ranges, *number) or number in noted
        note(ranges, *number)
        noted.add(number)
        assert was_heard(ranges, *number)
        assert len(ranges) <= MOST_RANGES


def test_runs_that_meet_are_one() -> None:
    """Protects the changelog: what a client that leaves no gaps is remembered by does not grow."""
    ranges: list[NumberRange] = []
    for sequence in [1, 2, 7, 8, 3, 4, 5, 6, 9]:
        note(ranges, 5, sequence)
    assert ranges == [NumberRange(5, 1, 9)]


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize(
    ("epoch", "sequence"), [(2**63, 1), (1, 2**63), (1, 2**52), (2_000_000_000, 7), (0, 3)]
)
def test_one_number_of_a_stranger_silences_nobody(lockstep: bool, epoch: int, sequence: int) -> None:
    """Protects a client from one message under its name: its own updates count afterwards, and after a
    restart as well."""
    role, state = server(lockstep, clients=1), State()
    role.receive([update("a", 1)], 1000.0)
    remember(role, state)
    role.receive(
        [update("a", sequence, version=1, epoch=epoch, kernels=(0,) if sequence < 2**60 else ())], 1000.0
    )
    version = int(figures(role)["model_version"])
    remember(role, state)
    for each in (role, restored(state, server(lockstep, clients=1))):
        assert each.receive([update("a", 2, version)], 1001.0) == []
        assert each.receive([update("a", 3, version + 1)], 1002.0) == []
        assert figures(each)["model_version"] == version + 2
        assert figures(each)["ignored_updates/duplicate"] == 0


def test_two_voices_of_one_client_are_told_of() -> None:
    """Protects a user whose samples are not keyed by client, and one whom somebody speaks for: both lives
    count, and it is said."""
    role = server()
    role.receive([update("a", 1, epoch=2), update("a", 2, epoch=2)], 1000.0)
    assert list(role.notices()) == []
    assert (
        role.receive([update("a", 7, epoch=1), update("a", 3, epoch=2), update("a", 8, epoch=1)], 1000.0)
        == []
    )
    assert figures(role)["updates_applied"] == 5
    assert figures(role)["superseded_updates"] == 2
    (notice,) = role.notices()
    assert (notice.reason, "'a'" in notice.text) == ("superseded", True)
    role.receive([update("a", 8, epoch=1)], 1000.0)
    assert [notice.reason for notice in role.notices()] == ["duplicate_update"]
    assert figures(role)["ignored_updates/duplicate"] == 1


def test_what_the_first_releases_remembered_of_a_client_is_read() -> None:
    """Protects an upgrade: [epoch, sequence, seen_at, awaited] of every client goes on, and what it had said
    counts once."""
    role = server()
    role.restore(StateChange("state", 0, b"round", msgspec.msgpack.encode([None, False, 2])))
    role.restore(StateChange("state", 0, b"client/a", msgspec.msgpack.encode([7, 12, 900.0, True])))
    role.restore(
        StateChange("model", 0, MARKER_KEY, SHARD_VERSION.encode(ShardVersion(VERSION, 0, 2, 0, 12, 12)))
    )
    assert (
        role.receive(
            [update("a", 12, 12, epoch=7), update("a", 5, 12, epoch=7), update("a", 13, 12, epoch=7)], 1000.0
        )
        == []
    )
    assert (figures(role)["updates_applied"], figures(role)["model_version"]) == (1, 13)


# ---- rounds


def test_a_stranger_that_never_takes_part_is_not_waited_for() -> None:
    """Protects lockstep from stale messages under an invented name: no round times out, no seat is taken."""
    role, at = server(lockstep=True), 1000.0
    role.receive([update("a", 1, at=at), update("b", 1, at=at)], at)
    role.receive([], at + TIMEOUT)
    for round in range(1, 20):
        at += 1000.0
        stale = [
            update("nobody", round, 0, kernels=(), at=at),
            update("nobody", round + 100, round - 1, kernels=(), at=at),
        ]
        role.receive(stale, at)
        role.receive([update("a", round + 1, round, at=at), update("b", round + 1, round, at=at)], at)
        assert figures(role)["model_version"] == round + 1
    assert (figures(role)["timed_out_rounds"], figures(role)["clients"]) == (1, 2)


def test_a_silent_client_is_named_and_the_others_go_on() -> None:
    """Protects four sites of five: after one timeout nobody waits for the fifth, the log names it, and once
    back it counts."""
    role, at = server(lockstep=True), 1000.0
    role.receive([update(name, 1, at=at) for name in "abc"], at)
    role.receive([update(name, 2, 1, at=at) for name in "ab"], at)
    role.receive([], at + TIMEOUT)
    (notice,) = role.notices()
    assert notice.reason == "round_timed_out"
    assert "without 'c'" in notice.text
    role.receive([update(name, 3, 2, at=at + TIMEOUT) for name in "ab"], at + TIMEOUT)
    assert figures(role)["model_version"] == 3
    # It was one version behind, and tries twice before a round waits for it again.
    role.receive([update("c", 2, 2, at=at + 31)], at + 31)
    role.receive([update(name, 4, 3, at=at + 31) for name in "ab"], at + 31)
    role.receive([update("c", 3, 3, at=at + 32)], at + 32)
    role.receive([update(name, 5, 4, at=at + 32) for name in "ab"], at + 32)
    assert figures(role)["model_version"] == 4
    role.receive([update("c", 4, 4, at=at + 33)], at + 33)
    assert figures(role)["model_version"] == 5
    assert figures(role)["updates_applied"] == 3 + 2 + 2 + 2 + 3


def test_who_stalls_rounds_again_and_again_is_waited_for_ever_less() -> None:
    """Protects the others' pace from a name that takes part once and falls silent, over and over."""
    role, at, timed_out = server(lockstep=True, clients=2), 1000.0, []
    role.receive([update("a", 1, at=at)], at)
    role.receive([], at + TIMEOUT)
    for round in range(1, 400):
        at += 40.0
        version = int(figures(role)["model_version"])
        role.receive([update("x", round, version, at=at), update("a", 2 * round, version, at=at)], at)
        role.receive([update("a", 2 * round + 1, version + 1, at=at + 1)], at + 1)
        if figures(role)["round_waiting"]:
            role.receive([], at + 39)
            timed_out.append(round)
    assert len(timed_out) <= 9
    assert figures(role)["timed_out_rounds"] == 1 + len(timed_out)


def test_lockstep_state_goes_on_without_rounds() -> None:
    """Protects whoever changes learning.staleness: what waited for a round counts, and versions only grow."""
    state: State = {}
    role = server(lockstep=True)
    role.receive([update(name, 1) for name in "abc"], 1000.0)
    role.receive([update("a", 2, 1)], 1000.0)
    remember(role, state)
    role = restored(state, server(lockstep=False))
    role.receive([], 2000.0)
    assert (
        marker_of(remember(role, state)).model_version
        == marker_of([StateChange("model", 0, MARKER_KEY, state["model", MARKER_KEY])]).updates
    )
    assert (figures(role)["model_version"], role.wake_at) == (4, None)
    role.receive([update("b", 2, 1)], 2000.0)
    assert figures(role)["model_version"] == 5


# ---- seats


def test_idle_names_make_room_and_who_takes_part_stays() -> None:
    """Protects newcomers from names that were invented once, and members from newcomers."""
    role, at = server(), 1000.0
    role.receive([update("typo-1", 1, at=at), update("typo-2", 1, at=at), update("a", 1, at=at)], at)
    role.receive([update("a", 2, at=at + DAY - 1)], at + DAY - 1)
    assert reasons(role.receive([update("b", 1, at=at + DAY - 1)], at + DAY - 1)) == ["too_many_clients"]
    strangers = [update(f"stranger-{number}", 1, at=at + DAY) for number in range(100)]
    assert reasons(role.receive(strangers, at + DAY)) == ["too_many_clients"] * 98
    assert role.receive([update("a", 3, at=at + DAY + 1)], at + DAY + 1) == []
    assert (figures(role)["clients"], figures(role)["expired_clients"]) == (3, 2)


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_update_of_nothing_takes_no_seat(lockstep: bool) -> None:
    """Protects the seats: empty messages of invented names give way to everybody who teaches."""
    role = server(lockstep)
    role.receive([update(f"nobody-{number}", 1, kernels=()) for number in range(100)], 1000.0)
    assert (
        role.receive([update(name, 1, int(figures(role)["model_version"])) for name in "abc"], 1000.0) == []
    )
    assert all(name in role.snapshot()[0].members for name in "abc")


def test_a_client_that_is_forgotten_holds_up_no_round_and_comes_back_as_new() -> None:
    """Protects what forgetting promises: nothing is left of it, and the round that waited for it goes on."""
    role, state = server(lockstep=True, clients=2), State()
    role.receive([update("a", 1), update("b", 1)], 1000.0)
    role.receive([update("a", 2, 1, at=1001.0)], 1001.0)
    role.receive([], 1001.0 + TIMEOUT)
    role.receive([update("a", 3, 2, at=1032.0), update("b", 2, 2, at=1032.0)], 1032.0)
    role.receive([update("b", 3, 3, at=1033.0), update("b", 4, 3, at=1033.0)], 1033.0)
    remember(role, state)
    before = figures(role)["model_version"]
    assert role.forget("a")
    assert not role.forget("a")
    remember(role, state)
    assert figures(role)["model_version"] == before + 1
    assert not [key for _, key in state if key.endswith(b"/a")]
    assert role.receive([update("a", 1, int(before) + 1, at=1034.0)], 1034.0) == []
    assert "a" in role.snapshot()[0].members


def test_who_was_seen_by_a_clock_that_was_ahead_does_not_stay_for_ever() -> None:
    """Protects seats from a clock that was set back: it counts as seen now, not in an hour."""
    members = ShardMembers(1, DAY)
    members.note("a", 1, 1, 1_000_000.0, 1_000_000.0, True)
    members.set_back(1000.0)
    for now in (1000.0, 1000.0 + DAY - 1):
        with pytest.raises(BadRecord, match="too_many_clients"):
            members.make_room("b", now, True)
    assert members.make_room("b", 1000.0 + DAY, True) == "a"


# ---- the dimension


def test_the_first_message_does_not_fix_the_dimension() -> None:
    """Protects a new federation: what is configured counts, an update of another dimension is refused and
    remembered nowhere."""
    role, state = server(), State()
    first = role.receive([update("x", 1, dimension=7), update("y", 1, dimension=7, kernels=())], 1000.0)
    assert reasons(first) == ["configuration", "configuration"]
    assert role.receive([update("a", 1)], 1000.0) == []
    assert marker_of(remember(role, state)).dimension == 2


def test_a_new_server_without_features_ends_with_what_to_add() -> None:
    """Protects a new federation: nobody's first message decides what its samples consist of."""
    with pytest.raises(ConfigurationError, match=r"federation\.features is missing.*features = \["):
        server(dimension=None).receive([], 1000.0)


def test_a_federation_that_began_without_features_goes_on_and_takes_them_over() -> None:
    """Protects an upgrade: the remembered dimension counts; when features are added they are taken over, and
    it is said once."""
    round_ = StateChange("state", 0, b"round", msgspec.msgpack.encode([None, False, 2]))
    marker = StateChange("model", 0, MARKER_KEY, SHARD_VERSION.encode(ShardVersion(VERSION, 5, 2, 0, 9, 9)))
    without = server(dimension=None, fingerprints=(5,))
    named = server(fingerprints=(6, 5))
    for role in (without, named):
        role.restore(round_)
        role.restore(marker)
        role.receive([], 1000.0)
    assert without.receive([update("a", 1, 9, fingerprint=5)], 1000.0) == []
    assert figures(without)["model_version"] == figures(named)["model_version"] + 1 == 10
    state: State = {(round_.channel, round_.key): round_.value or b""}
    assert marker_of(remember(named, state)).fingerprint == 6
    assert [notice.reason for notice in named.notices()] == ["taken_over"]
    assert reasons(named.receive([update("a", 1, 9, fingerprint=5)], 1000.0)) == ["configuration"]
    again = restored(state, server(fingerprints=(6, 5)))
    again.receive([], 1000.0)
    assert (list(again.notices()), list(again.changed_state())) == ([], [])
    with pytest.raises(ConfigurationError, match=r"federation\.features: 4 are given.*from 2"):
        restored(state, server(fingerprints=(6, 5), dimension=4)).receive([], 1000.0)


# ---- the model


def foreign(version: int) -> dict[tuple[str, bytes], bytes]:
    """What a stranger may write into the model topic."""
    row = encode_array(np.full(ROW, 77, np.float32))
    return {
        ("model", kernel_key(0)): KERNEL_PARAMETERS.encode(KernelParameters(VERSION, 0, row)),
        ("model", kernel_key(2)): b"rubbish",
        ("model", b"what is this"): b"\x93\x01\x02\x03",
        ("model", MARKER_KEY): SHARD_VERSION.encode(ShardVersion(VERSION, 0, 2, 0, version, version)),
    }


def test_an_update_on_a_version_that_never_was_mends_the_topic() -> None:
    """Protects all clients from one model record: the server publishes all that counts anew, and target rows
    count at once."""
    role, state = server(targets=True), State()
    role.receive([update("a", 1, kernels=(0, 1, 2), step=0.1)], 1000.0)
    remember(role, state)
    own = dict(state)
    state |= foreign(10**6)
    assert role.receive([update("a", 2, 10**6, kernels=(1,), step=0.1)], 1000.0) == []
    remember(role, state)
    assert figures(role)["model_repairs"] == 1
    assert [notice.reason for notice in role.notices()] == ["unknown_version"]
    assert marker_of([StateChange("model", 0, MARKER_KEY, state["model", MARKER_KEY])]).model_version == 2
    assert all(state["model", kernel_key(kernel)] == own["model", kernel_key(kernel)] for kernel in (0, 2))


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_gradient_of_parameters_that_nobody_knows_is_not_applied(lockstep: bool) -> None:
    """Protects the model: what was made from a stranger's parameters is no dead end, and no step either."""
    role, state = server(lockstep, clients=1), State()
    role.receive([update("a", 1)], 1000.0)
    remember(role, state)
    assert (
        reasons(role.receive([update("a", 2, 10**6, step=LARGEST_STEP)] * 3, 1000.0))
        == ["unknown_version"] * 3
    )
    assert len([change for change in remember(role, state) if change.channel == "model"]) == KERNELS + 1
    assert (figures(role)["model_repairs"], figures(role)["model_version"]) == (1, 1)
    assert role.receive([update("a", 3, 1)], 1000.0) == []
    assert figures(role)["model_version"] == 2


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_server_publishes_nothing_that_its_clients_refuse(lockstep: bool) -> None:
    """Protects clients from an update of any size: what becomes of it is shortened to what they take, and
    told."""
    role, state = server(lockstep, clients=1), State()
    role.receive([update("a", 1, kernels=(0, 1), step=LARGEST_STEP)], 1000.0)
    remember(role, state)
    assert [notice.reason for notice in role.notices()] == ["model_bounded"]
    model = ModelTable(KERNELS, ROW, 2, 1, 0, np.float32)
    for (channel, key), value in state.items():
        if channel == "model":
            model.apply(decode_model(key, value), 0)
    assert model.versions == (1,)
    assert np.linalg.norm(model.parameters[0].astype(np.float64)) == pytest.approx(
        LARGEST_PARAMETERS, rel=2e-3
    )


def test_what_was_overwritten_in_silence_lasts_a_few_versions() -> None:
    """Protects clients from parameters under the right version: kernels that nobody trains are published in
    turn."""
    role, state = server(), State()
    role.receive([update("a", 1, kernels=(0, 1, 2))], 1000.0)
    remember(role, state)
    own = state["model", kernel_key(2)]
    state["model", kernel_key(2)] = foreign(1)["model", kernel_key(0)]
    for sequence in range(2, 2 + 4 * KERNELS):
        role.receive([update("a", sequence, kernels=(0,))], 1000.0)
        remember(role, state)
    assert state["model", kernel_key(2)] == own


def test_a_restarted_server_takes_nothing_from_a_stranger() -> None:
    """Protects the model at a restart: version and parameters are the server's own, the topic is mended,
    nothing ends in a loop."""
    role, state = server(), State()
    for sequence in range(1, 41):
        role.receive([update("a", sequence, kernels=(0, 1, 2))], 1000.0)
        remember(role, state)
    own = {kernel: parameters_in(state, kernel) for kernel in range(KERNELS)}
    state |= foreign(10**6)
    role = restored(state, server())
    role.receive([], 1000.0)
    remember(role, state)
    assert (figures(role)["model_version"], figures(role)["model_repairs"]) == (40, 1)
    assert [notice.reason for notice in role.notices()] == ["model_mended"]
    assert ("model", b"what is this") not in state
    assert marker_of([StateChange("model", 0, MARKER_KEY, state["model", MARKER_KEY])]) == ShardVersion(
        VERSION, 0, 2, 0, 40, 40
    )
    np.testing.assert_array_equal(parameters_in(state, 1), own[1])
    # Of what was overwritten there is a copy, at most four times as many versions old as there are kernels: a
    # step moves by 1/3.
    for kernel in (0, 2):
        assert np.abs(parameters_in(state, kernel) - own[kernel]).max() <= 4 * KERNELS / 3
    again = restored(state, server())
    again.receive([], 1000.0)
    assert (list(again.changed_state()), figures(again)["model_repairs"]) == ([], 0)


def test_a_new_server_does_not_begin_with_a_strangers_model() -> None:
    """Protects a federation that begins: what lies in its model topic before its first version is
    overwritten."""
    role = restored(foreign(10**6), server())
    role.receive([], 1000.0)
    state = State(foreign(10**6))
    remember(role, state)
    assert marker_of([StateChange("model", 0, MARKER_KEY, state["model", MARKER_KEY])]).model_version == 0
    assert not parameters_in(state, 0).any()
    assert role.receive([update("a", 1)], 1000.0) == []
    assert figures(role)["model_version"] == 1


def test_the_model_of_the_first_releases_is_taken_as_it_lies() -> None:
    """Protects an upgrade: a server whose state has no book goes on with its topic, and has a book from then
    on."""
    role, state = server(), State()
    role.receive([update("a", 1, kernels=(0, 1, 2))], 1000.0)
    remember(role, state)
    former = {
        slot: value for slot, value in state.items() if not slot[1].startswith((b"published", b"copy/"))
    }
    upgraded = restored(former, server())
    upgraded.receive([update("a", 2, 1)], 1000.0)
    remember(upgraded, former)
    assert (figures(upgraded)["model_version"], figures(upgraded)["model_repairs"]) == (2, 0)
    assert {key for _, key in former} >= {b"published", b"copy/0", b"copy/1", b"copy/2"}


# ---- the model at a client


def table() -> ModelTable:
    return ModelTable(kernels=1, row_length=ROW, dimension=2, shards=1, fingerprint=0, dtype=np.float32)


def table_is_in_use(model: ModelTable) -> bool:
    return model.trouble is None


def publish(model: ModelTable, version: int, updates: int | None = None, value: float = 1.0) -> list[str]:
    """The reasons for which records of a version were refused."""
    refused = []
    marker = ShardVersion(VERSION, 0, 2, 0, version, version if updates is None else updates)
    for message in (KernelParameters(VERSION, 0, encode_array(np.full(ROW, value, np.float32))), marker):
        try:
            model.apply(message, 0)
        except BadRecord as error:
            refused.append(error.reason)
    return refused


@pytest.mark.parametrize(
    ("version", "updates"), [(10**6, 10**6), (-1, 5), (2**60, 2**60), (9, 8), (9, 2**60)]
)
def test_a_version_that_cannot_be_is_refused_and_told(version: int, updates: int) -> None:
    """Protects clients: they go on with what they have, are not ready, and are again with the server's next
    version."""
    model = table()
    assert publish(model, 5) == []
    assert publish(model, version, updates, value=9.0) == ["implausible"]
    assert (model.versions, float(model.parameters[0, 0])) == ((5,), 1.0)
    assert model.trouble is not None
    assert publish(model, 4, value=3.0) == []
    assert (model.versions, float(model.parameters[0, 0])) == ((4,), 3.0)
    assert table_is_in_use(model)


def test_a_jump_that_is_true_is_taken_when_it_is_said_again() -> None:
    """Protects a client that was away for long: a refusal decides nothing for good either."""
    model = table()
    publish(model, 5)
    assert publish(model, 10**6) == ["implausible"]
    assert publish(model, 10**6 + 3) == []
    assert (model.versions, model.trouble) == ((10**6 + 3,), None)


def test_parameters_that_cannot_be_are_refused_and_told() -> None:
    """Protects predictions: such parameters are not used, the version is, and the kernel comes right when it
    is published again."""
    model = table()
    publish(model, 5)
    assert publish(model, 6, value=LARGEST_PARAMETERS) == ["implausible"]
    assert (model.versions, float(model.parameters[0, 0])) == ((6,), 1.0)
    assert model.trouble is not None
    assert publish(model, 7, value=2.0) == []
    assert float(model.parameters[0, 0]) == 2.0
    assert table_is_in_use(model)


def test_every_record_that_mends_is_one_that_clients_take() -> None:
    """Protects the way back: what the server publishes anew is taken by a client that a stranger led
    astray."""
    role, state, model = server(targets=True), State(), ModelTable(KERNELS, ROW, 2, 1, 0, np.float32)
    role.receive([update("a", 1, kernels=(0, 1, 2), step=0.1)], 1000.0)
    remember(role, state)
    model.apply(ShardVersion(VERSION, 0, 2, 0, 10**6, 10**6), 0)
    role.receive([update("a", 2, 10**6, kernels=(0,), step=0.1)], 1000.0)
    for change in itertools.chain(remember(role, state)):
        if change.channel == "model":
            model.apply(decode_model(change.key, change.value), 0)
    assert (model.versions, model.trouble) == ((2,), None)
    for kernel in range(KERNELS):
        np.testing.assert_array_equal(model.parameters[kernel], parameters_in(state, kernel))
