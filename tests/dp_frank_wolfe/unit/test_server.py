"""The server, driven by messages that are made by hand."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.hand_made import ROWS, Hand, Server, converse, hands, names_of, settings_of

from streamfl.dp_frank_wolfe.messages import (
    Answers,
    Ask,
    Chosen,
    Entities,
    Frozen,
    Message,
    Partial,
    Products,
    VertexAnswer,
    content_of,
    read_content,
)

EXACT: dict[str, Any] = {"epsilon": float("inf")}


def begun(**sections: dict[str, Any]) -> tuple[Server, dict[str, Hand]]:
    """A server that has told the first manifest."""
    server = Server(settings_of(**sections))
    server.announce(names_of())
    return server, hands(server)


def test_windows_follow_one_another() -> None:
    """Protects windows: rows names that all have announced, in ascending order, each once; the next begins
    when one has ended."""
    server = Server(settings_of())
    server.announce(names_of(ROWS - 1), 1)
    assert server.said == []
    server.tell("party-0", "entities", Entities(["z"]), iteration=2)
    # The first to be complete are the first to be taken, and a name that one party alone has announced waits.
    later = names_of(2 * ROWS)[ROWS:]
    server.tell("party-1", "entities", Entities(["a later one", *later, "z"]), iteration=2)
    assert [party for party, _ in server.said] == ["party-0", "party-1"]
    for party, message in server.said:
        assert server.rows(party, message) == sorted([*names_of(ROWS - 1), "z"])
    server.restart()
    first = list(server.said)
    server.tell("party-0", "entities", Entities(later), iteration=3)
    assert server.said == [], "one fit at a time"
    server.said = first
    second = converse(server, hands(server))
    assert [message.kind for _, message in second] == ["manifest", "manifest"]
    for party, message in second:
        assert server.rows(party, message) == later


def test_nobody_is_left_behind_if_all_are_silent() -> None:
    """Protects a fit from going on with nobody, and from a manifest or an ask that met parties which could
    release nothing."""

    def assert_said_again() -> None:
        said = list(server.said)
        assert len(said) == 2
        for _ in range(2):
            server.restart()
            server.tick(59)
            assert server.said == []
            server.tick(1)
            # With a manifest that nobody answers comes once a question for all names anew.
            assert [one for one in server.said if one[1].kind != "entities"] == said
            questions.extend(one for one in server.said if one[1].kind == "entities")
        assert server.task.liveness.present == server.public.parties

    questions: list[object] = []
    server, _ = begun()
    assert_said_again()
    assert len(questions) == 2
    for party in server.public.parties:
        server.tell(party, "frozen", Frozen(manifest_digest()), 1)
    assert_said_again()
    # As soon as one has answered, the other is left behind.
    server.tell("party-1", "answers", Answers([vertex(block=1)], None), 1, 0)
    server.tick(60)
    assert [(party, message.iteration) for party, message in server.said] == [("party-1", 1)]
    assert server.task.liveness.present == ["party-1"]


def manifest_digest() -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode([sorted(names_of())])).digest()


def test_what_comes_again_is_counted_and_something_else_is_refused() -> None:
    """Protects law 5, and a server from a party that changes its answer."""
    server, _found = begun()
    frozen = Frozen(manifest_digest())
    for _ in range(2):
        server.tell("party-0", "frozen", frozen, 1)
    server.tell("party-0", "entities", Entities(names_of()), iteration=1)
    assert server.role.counts.repeated_messages == 2
    assert server.hear("party-0", "frozen", Frozen(bytes(32)), 1) == ["another_answer"]
    assert server.said == []


def test_only_an_answer_of_who_owes_one_ends_the_wait() -> None:
    """Protects the operator: a party that announces names all the time, or whose records are refused, kept
    the server from saying for whom it waits."""
    server, found = begun(window={"patience_seconds": 36_000.0})
    away, *present = server.public.parties
    for party, message in list(server.said):
        if party in present:
            answered(server, found, party, message)
    assert server.task.owing == [away]
    for number in range(6):
        server.tick(30.0)
        server.tell(present[0], "entities", Entities([f"n{number}"]), 0, 2 + number)
        assert server.hear(away, "frozen", Frozen(bytes(32)), 1) != []
        server.tick()
    assert str(server.role.backlog).startswith(f"waits for {away} since ")
    assert "an answer is due" in str(server.role.trouble)


def test_announcements_beyond_the_limit_are_left_out_and_the_next_are_heard() -> None:
    """Protects a server whose window.limit is below a party's: what fits waits, the rest is counted, and
    nothing stops for good."""
    server = Server(settings_of(window={"limit": ROWS}))
    one, other = server.public.parties[:2]
    server.tell(one, "entities", Entities(names_of(ROWS + 1)), iteration=1)
    assert server.role.counts.left_out_entities == 1
    server.tell(one, "entities", Entities(["somebody"]), iteration=2)
    assert server.role.counts.left_out_entities == 2
    server.restart()
    for party in server.public.parties[1:]:
        server.tell(party, "entities", Entities(names_of()), iteration=1)
    assert [message.kind for party, message in server.said if party == other] == ["manifest"]
    server.tell(one, "entities", Entities(["somebody"]), iteration=3)
    assert server.role.counts.left_out_entities == 0


def asked() -> tuple[Server, dict[str, Hand], Message]:
    """A server with room for a window's names alone, which waits for the first answers, and what it asked of
    party-0."""
    server, found = begun(window={"limit": ROWS})
    said = list(server.said)
    for party, message in said:
        answered(server, found, party, message)
    return server, found, server.said[0][1]


def answered(server: Server, found: dict[str, Hand], party: str, message: Message) -> Any:
    """A party's right answer, which the server takes."""
    answer = found[party].hear(message)
    assert answer is not None
    kind, content, iteration = answer
    server.tell(party, kind, content, 1, iteration)
    return content


def asked_to_choose() -> tuple[Server, dict[str, Hand], dict[str, Message], Chosen]:
    """A server that waits for both parties' choices: with it the parties, what it asked each of them, and the
    right answer of the first."""
    server, found = begun(learning={"estimator": "two-round", "columns": 4})
    said = list(server.said)
    for party, message in said:
        answered(server, found, party, message)
    asks = dict(server.said)
    right = found["party-0"].hear(asks["party-0"])
    assert right is not None
    assert right[0] == "chosen"
    return server, found, asks, right[1]


NUMBERS = np.zeros(16, "<i8")


def vertex(
    block: int = 0, column: int = 1, positive: bool = True, sums: bytes = NUMBERS.tobytes()
) -> VertexAnswer:
    return VertexAnswer(block, column, positive, sums)


WRONG: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("malformed", "answers", b"\xc1", {}),
    ("implausible", "answers", Answers([vertex()], None), {"iteration": 1}),
    ("implausible", "answers", Answers([vertex()], None), {"window": 2}),
    ("implausible", "products", Products(b"", b""), {}),
    ("implausible", "chosen", Chosen(b"", b"", b"", b""), {"iteration": 7}),
    ("implausible", "answers", Answers([vertex()], 0.5), {}),
    ("implausible", "answers", Answers([vertex(block=1)], None), {}),
    ("implausible", "answers", Answers([vertex(block=2**40)], None), {}),
    ("implausible", "answers", Answers([vertex(), vertex()], None), {}),
    ("implausible", "answers", Answers([vertex(column=4)], None), {}),
    ("shape", "answers", Answers([vertex(sums=b"")], None), {}),
    ("shape", "answers", Answers([vertex(sums=bytes(8))], None), {}),
    ("out_of_bounds", "answers", Answers([vertex(sums=(NUMBERS + 2**62).tobytes())], None), {}),
    ("out_of_bounds", "answers", Answers([vertex(sums=np.full(16, -(2**63)).tobytes())], None), {}),
    ("another_answer", "frozen", Frozen(bytes(32)), {}),
    ("malformed", "entities", Entities(["a", "a"]), {"window": 0, "iteration": 2}),
    ("malformed", "entities", Entities(["\N{SNOWMAN}" * 100]), {"window": 0, "iteration": 2}),
    ("configuration", "partial", Partial("a", 1, 0.5), {"window": 0, "iteration": 1}),
]


@pytest.mark.parametrize(("reason", "kind", "content", "changed"), WRONG)
def test_what_is_wrong_is_refused_and_changes_nothing(
    reason: str, kind: str, content: Any, changed: dict[str, Any]
) -> None:
    """Protects the model from a party: law 4."""
    server, found, ask = asked()
    before = dict(server.state)
    made = content if isinstance(content, bytes) else content_of(content)
    message = Message(1, server.public.fingerprint, "party-0", 1, 0, kind, 0, b"", made)
    assert server.take("party-0", msgspec.structs.replace(message, **changed)) == [reason]
    assert server.state == before
    assert (server.said, server.published) == ([], [])
    # What is right is still taken.
    answered(server, found, "party-0", ask)


def test_what_follows_a_lost_announcement_is_taken() -> None:
    """Protects all later windows: the record of an announcement was deleted unread, or refused and replayed
    when its cause was gone."""
    server, _ = begun()
    names = [f"later-{number}" for number in range(3 * ROWS)]
    for party in server.public.parties:
        lost, kept = (2, 3) if party == "party-0" else (0, 2)
        server.tell(party, "entities", Entities(names[ROWS:], 1_000), 0, kept)
        assert server.task.announced.complete == (0 if lost else 2 * ROWS)
        server.restart()
    server.tell("party-1", "entities", Entities(names[:ROWS], 2_000), 0, 3)
    for _ in range(2):
        server.tell("party-0", "entities", Entities(names[:ROWS], 2_000), 0, 2)
        assert server.task.announced.complete == 3 * ROWS


def test_what_follows_a_lost_part_is_predicted() -> None:
    """Protects serving: each request costs budget, and after one lost part no later one was predicted."""
    server, found = begun(serving={"mode": "exact"}, privacy=EXACT)
    converse(server, found)
    server.published.clear()
    for entity, numbers in {"a": (1, 1), "c": (3, 3), "b": (2, 2)}.items():
        for _ in range(2):
            for party, number in zip(server.public.parties, numbers, strict=True):
                server.tell(party, "partial", Partial(entity, 1, 0.25), 0, number)
                server.restart()
    assert [key for channel, key, _ in server.published if channel == "predictions"] == ["a", "c", "b"]


def test_columns_beyond_the_quota_are_refused() -> None:
    """Protects what was agreed of sparsity, uplink and the server's memory, and sketches from being told
    twice."""
    server, _, _ = asked()
    for iteration, column in enumerate((0, 1, 2)):
        refused = server.hear("party-0", "answers", Answers([vertex(column=column)], None), 1, iteration)
        assert refused == (["quota"] if column == 2 else [])
        if not refused:
            server.tell("party-1", "answers", Answers([], None), 1, iteration)
    assert server.hear("party-0", "answers", Answers([vertex(column=1)], None), 1, 2) == ["another_sketch"]
    server.tell("party-0", "answers", Answers([vertex(column=1, sums=b"")], None), 1, 2)


def test_a_column_that_is_shown_too_late_is_shown() -> None:
    """Protects a party's return: it shows a column once, and what came too late for the step is what
    predictions are made of."""
    server, _, _ = asked()
    server.tell("party-0", "answers", Answers([vertex()], None), 1, 0)
    server.tick(60)
    sums = np.arange(16, dtype="<i8")
    server.tell("party-1", "answers", Answers([vertex(block=1, column=2, sums=sums.tobytes())], None), 1, 0)
    server.tell("party-0", "answers", Answers([vertex(sums=b"")], None), 1, 1)
    assert [(party, message.iteration) for party, message in server.said] == [("party-0", 2), ("party-1", 2)]
    server.restart()
    server.tell("party-1", "answers", Answers([vertex(block=1, column=2, sums=b"")], None), 1, 2)
    server.tell("party-0", "answers", Answers([vertex(sums=b"")], None), 1, 2)
    ask = read_content(server.said[0][1].content, Ask)
    noise = server.public.fit_plan("party-1", 1).noise
    assert noise is not None
    # gamma_2 = 1/2 of r_1 = 1/2.
    np.testing.assert_array_equal(np.frombuffer(ask.others, "<f8"), 0.25 * noise.unit * sums)


def test_a_gap_is_told_where_nothing_is_private_and_is_a_number() -> None:
    """Protects the end of a fit, which a party could forge with NaN, and privacy from a gap that would tell
    of the data."""
    server, _found = begun(privacy=EXACT)
    for party in server.public.parties:
        server.tell(party, "frozen", Frozen(manifest_digest()), 1)
    for gap in (None, float("nan"), float("inf")):
        assert server.hear("party-0", "answers", Answers([vertex()], gap), 1, 0) == ["implausible"]
    server.tell("party-0", "answers", Answers([vertex()], 0.5), 1, 0)


def test_wrong_choices_are_refused_and_change_nothing() -> None:
    """Protects the estimators that choose once from columns, sizes and numbers that no party has."""
    server, found, asks, chosen = asked_to_choose()
    before = dict(server.state)
    for reason, columns in (
        ("shape", chosen.columns[:-1]),
        ("quota", chosen.columns[:4]),
        ("implausible", chosen.columns[:4] * 2),
        ("implausible", np.array([0, 4], "<u4").tobytes()),
    ):
        wrong = msgspec.structs.replace(chosen, columns=columns)
        assert server.hear("party-0", "chosen", wrong, 1) == [reason]
        assert server.state == before
    server.tell("party-0", "chosen", chosen, 1)
    answered(server, found, "party-1", asks["party-1"])
    products = found["party-0"].hear(server.said[0][1])
    assert products is not None
    gram = np.frombuffer(products[1].gram, "<f8").reshape(2, 2).copy()
    gram[0, 1] += 1e-9
    asymmetric = msgspec.structs.replace(products[1], gram=gram.tobytes())
    assert server.hear("party-0", "products", asymmetric, 1) == ["implausible"]
    server.tell("party-0", "products", products[1], 1)


@pytest.mark.parametrize(
    ("estimator", "privacy"),
    [("marginal", {"epsilon": 5.0}), ("two-round", {"epsilon": 5.0}), ("two-round", EXACT)],
)
def test_no_number_passes_that_the_public_plan_excludes(estimator: str, privacy: dict[str, Any]) -> None:
    """Protects the model, and the server's process, from a party that lies: values of 1e5 used to end it.

    What is just within the plan is taken, for honest noise may have come to it, and the fit ends with weights
    in their ball."""
    server, found = begun(learning={"estimator": estimator, "columns": 4, "radius": 0.9}, privacy=privacy)
    change = msgspec.structs.replace
    plan = server.public.selection_plan("party-0")
    said = list(server.said)
    lied = set()
    while said:
        party, message = said.pop(0)
        answer = found[party].hear(message)
        if answer is None:
            continue
        kind, content = answer[0], answer[1]
        if party == "party-0":
            for name in ("values", "norms", "rows", "products", "gram"):
                given = np.frombuffer(getattr(content, name, b""), "<f8").copy()
                if not len(given):
                    continue
                lied.add(name)
                lowest, highest = plan.range_of(name, ROWS)
                for beyond in (lowest - 1e-6, highest + 1e-6):
                    lie = np.full(len(given), beyond).tobytes()
                    assert server.hear(party, kind, change(content, **{name: lie}), 1) == ["out_of_bounds"]
                for reason, lie in (("shape", b""), ("not_finite", np.full(len(given), np.nan).tobytes())):
                    assert server.hear(party, kind, change(content, **{name: lie}), 1) == [reason]
                within = np.full(len(given), highest - 1e-6).tobytes()
                content = change(content, **{name: within})
        server.tell(party, kind, content, 1)
        said += [one for one in server.said if one[1].kind != "model"]
    assert lied == (
        {"values", "norms"} if estimator == "marginal" else {"values", "rows", "products", "gram"}
    )
    assert server.task.estimator.over
    assert server.task.estimator.l1_norm <= 0.9 * (1 + 1e-12)


def test_a_party_whose_every_answer_is_refused_is_not_waited_for() -> None:
    """Protects the others from a party that says NaN: the fit goes on without it after the patience, which is
    counted and told."""
    server, found, asks, chosen = asked_to_choose()
    nan = np.full(len(chosen.values) // 8, np.nan).tobytes()
    lie = msgspec.structs.replace(chosen, values=nan)
    assert server.hear("party-0", "chosen", lie, 1) == ["not_finite"]
    answered(server, found, "party-1", asks["party-1"])
    server.tick(60)
    assert "has not answered for 60 s" in next(iter(server.role.notices())).text
    converse(server, found)
    assert not server.task.owed
    assert server.role.counts.missing_answers == server.role.counts.timed_out_rounds == 1
    assert server.task.liveness.present == ["party-1"]
    assert not server.task.estimator.weights["party-0"].any()
    assert server.task.estimator.weights["party-1"].any()
