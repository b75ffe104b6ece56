"""A server whose parties are played by hand: messages are made of the arithmetic, with no role on the other
side."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from dp_frank_wolfe.problems import divided, sparse

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange, receive_at_once
from streamfl.dp_frank_wolfe import SYSTEM, messages
from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.means import centred, released_means
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.selection import clip_rows
from streamfl.dp_frank_wolfe.learning.weights import read_weights, weights_of
from streamfl.dp_frank_wolfe.messages import (
    Answers,
    Ask,
    Chosen,
    Entities,
    Frozen,
    Manifest,
    Message,
    OtherRows,
    Products,
    VertexAnswer,
    codec,
    content_of,
    read_content,
)
from streamfl.dp_frank_wolfe.metrics import MemberCounts
from streamfl.dp_frank_wolfe.party.fit import PartyFit
from streamfl.dp_frank_wolfe.party.manifest import numbered, rows_of
from streamfl.dp_frank_wolfe.party.selection import PartySelection
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.server.role import ServerTask
from streamfl.dp_frank_wolfe.tools.direct import place
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.roles.message_contents import HEADER_BYTES
from streamfl.roles.message_fragments import Limits
from streamfl.roles.partitioned_role import PartitionedRole

ROWS, COLUMNS, PARTIES = 40, 4, 2
BEGIN = 1000.0


def settings_of(**sections: dict[str, Any]) -> DPFrankWolfeSettings:
    """Of a server with two parties of four columns."""
    names = [f"party-{number}" for number in range(PARTIES)]
    content: dict[str, Any] = {
        "federation": {
            "name": "f",
            "parties": names,
            "columns": dict.fromkeys(names, COLUMNS),
            **sections.pop("federation", {}),
        },
        "role": {"kind": SERVER},
        "window": {"rows": ROWS, "patience_seconds": 60.0, **sections.pop("window", {})},
        "privacy": {"epsilon": 5.0, "delta": 1e-3, **sections.pop("privacy", {})},
        "learning": {
            "estimator": "frank-wolfe",
            "columns": 4,
            "iterations": 6,
            "sketch_rows": 16,
            **sections.pop("learning", {}),
        },
    }
    return DPFrankWolfeSettings.model_validate({**content, **sections})


def names_of(count: int = ROWS, first: int = 0) -> list[str]:
    return [f"entity {number:04d}" for number in range(first, first + count)]


class Server:
    """said: messages of the latest step, by the party that they go to. published: (channel, key, value) of
    all."""

    def __init__(self, settings: DPFrankWolfeSettings) -> None:
        self.settings, self.public, self.now = settings, Public(settings), BEGIN
        self.codec = codec(settings.message_bytes)
        self.state: dict[bytes, bytes] = {}
        self.said: list[tuple[str, Message]] = []
        self.published: list[tuple[str, str, Any]] = []
        self.sent: list[Send] = []
        # By party and number of the message, the first number and names that were announced.
        self.told: dict[str, dict[int, tuple[int, list[str]]]] = {party: {} for party in self.public.parties}
        self.role = self._make()

    def _make(self) -> PartitionedRole[ServerTask]:
        limits = Limits(self.settings.message_bytes + HEADER_BYTES, 16, 16, 100.0)
        counts = MemberCounts()
        decode = dict.fromkeys(
            (f"releases/{party}" for party in self.public.parties),
            lambda record: self.codec.decode(record.value),
        )
        role = PartitionedRole(
            lambda outbox: ServerTask(self.public, outbox), decode, limits, 60.0, SERVER, counts, SYSTEM
        )
        role.open(0)
        return role

    @property
    def task(self) -> ServerTask:
        return self.role.task(0)

    def restart(self) -> None:
        """Another process, with what was remembered."""
        self.role = self._make()
        for key, value in self.state.items():
            self.role.restore(StateChange("state", 0, key, value))

    def hear(
        self, party: str, kind: str, content: Any, window: int = 0, iteration: int = 0, **changed: Any
    ) -> list[str]:
        """A party's message; returns the reasons for which it was refused. Entities without numbers get the
        next ones."""
        if isinstance(content, Entities) and not content.first:
            told = self.told[party]
            content = Entities(
                content.names, told.get(iteration, (1 + sum(len(names) for _, names in told.values()), []))[0]
            )
            told[iteration] = content.first, content.names
        made = content if isinstance(content, bytes) else content_of(content)
        message = Message(VERSION, self.public.fingerprint, party, window, iteration, kind, 0, b"", made)
        return self.take(party, msgspec.structs.replace(message, **changed))

    def take(self, party: str, message: Message) -> list[str]:
        record = Record(f"f.{party}.releases", 0, 0, None, b"", (), self.now)
        return self._step([Received(f"releases/{party}", message, record)])

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        assert self._step([]) == []

    def _step(self, batch: list[Received]) -> list[str]:
        replies = receive_at_once(self.role, batch, self.now)
        self.sent = [reply for reply in replies if isinstance(reply, Send)]
        self.said = []
        for send in self.sent:
            channel, _, party = send.channel.partition("/")
            if channel == "asks":
                self.said.append((party, self.codec.decode(send.value)))
            else:
                assert send.key is not None
                self.published.append((channel, send.key.decode(), msgspec.json.decode(send.value)))
        for change in self.role.changed_state():
            self.state.pop(change.key, None)
            if change.value is not None:
                self.state[change.key] = change.value
        return [reply.error.reason for reply in replies if isinstance(reply, Rejection)]

    def announce(self, names: Sequence[str], number: int = 1) -> None:
        for party in self.public.parties:
            assert self.hear(party, "entities", Entities(list(names)), iteration=number) == []

    def rows(self, party: str, manifest: Message) -> list[str]:
        """The names that a manifest means."""
        told: Manifest = read_content(manifest.content, Manifest)
        assert not told.names, "all were announced under numbers"
        return rows_of(told, self.public.settings.window.rows, numbered(self.told[party].values()))


@dataclass
class Hand:
    """A party's side of one window, by the arithmetic alone. window: as it is fitted, centred."""

    server: Server
    party: str
    window: Window
    number: int = 1
    manifest: bytes = b""
    means: bytes = b""
    label_weight: int = 1
    weights: Any = None
    fit: PartyFit = field(init=False)
    selection: PartySelection = field(init=False)

    def __post_init__(self) -> None:
        public, at = self.server.public, place(self.party, self.number, bytes(range(32)))
        if public.settings.learning.intercept:
            plan = public.means_plan(self.party)
            told = released_means(self.window, plan, at)
            self.means, self.label_weight = told.astype("<i8").tobytes(), plan.weight
            self.window = centred(self.window, plan.means(told, len(self.window.labels)))
        if public.settings.learning.estimator != "frank-wolfe":
            self.selection = PartySelection(self.window, public.selection_plan(self.party), at)
            return
        blocks = {number: block for number, block in enumerate(public.blocks) if block.party == self.party}
        plan = public.fit_plan(self.party, self.number)
        self.fit = PartyFit(
            self.window, blocks, plan, public.sketch(self.number), at, None, public.settings.federation.seed
        )

    def hear(self, message: Message) -> tuple[str, Any, int] | None:
        """What it answers: kind, content and iteration."""
        public = self.server.public
        assert message.window == self.number
        if message.kind == "manifest":
            told: Manifest = read_content(message.content, Manifest)
            self.manifest = told.digest or hashlib.sha256(message.content).digest()
            return "frozen", Frozen(self.manifest, self.means, self.label_weight), 0
        if message.kind == "ask":
            ask: Ask = read_content(message.content, Ask)
            count = public.settings.federation.columns[self.party]
            own = read_weights(ask.columns, ask.weights, count, public.radius(self.party))
            others = np.frombuffer(ask.others, "<f8")
            due = public.sampling.blocks_of(self.number, message.iteration)
            mine = [number for number in due if public.blocks[number].party == self.party]
            gap = self.fit.gap(own, others) if math.isinf(public.settings.privacy.epsilon) else None
            answers = [
                VertexAnswer(
                    number,
                    one.vertex.column,
                    one.vertex.sign > 0,
                    b"" if one.sums is None else encode_array(one.sums),
                )
                for number, one in self.fit.answer(message.iteration, mine, own, others).items()
            ]
            return "answers", Answers(answers, gap), message.iteration
        if message.kind == "choose":
            columns = np.array(self.selection.choose(), "<u4").tobytes()
            values = encode_array(self.selection.values())
            two = public.settings.learning.estimator == "two-round"
            norms = b"" if two else encode_array(self.selection.norms())
            return (
                "chosen",
                Chosen(columns, values, norms, encode_array(self.selection.rows()) if two else b""),
                0,
            )
        if message.kind == "rows":
            rows: OtherRows = read_content(message.content, OtherRows)
            others = np.frombuffer(rows.rows, "<f8").reshape(public.settings.window.rows, -1)
            gram = self.selection.gram()
            products = self.selection.products(clip_rows(others, public.selection_plan(self.party).row_bound))
            return "products", Products(encode_array(products), encode_array(gram)), 0
        assert message.kind == "model"
        model = read_content(message.content, messages.FittedModel)
        self.weights = (model.columns, model.weights)
        return None


def hands(server: Server, seed: int = 0, number: int = 1) -> dict[str, Hand]:
    columns = COLUMNS * PARTIES
    windows = sparse(ROWS, columns, PARTIES, seed=seed)
    return {party: Hand(server, party, window, number) for party, window in windows.items()}


def windows_of(found: dict[str, Hand]) -> dict[str, Window]:
    return {party: hand.window for party, hand in found.items()}


def converse(
    server: Server, parties: dict[str, Hand], restart: bool = False, without: frozenset[str] = frozenset()
) -> None:
    """Until nobody has anything to say. restart: another process takes up the server before each message.

    without: parties that hear nothing.
    """
    unread = [one for one in server.said if one[0] not in without]
    while unread:
        party, message = unread.pop(0)
        answer = parties[party].hear(message)
        if answer is not None:
            if restart:
                server.restart()
            kind, content, iteration = answer
            assert server.hear(party, kind, content, message.window, iteration) == []
            unread += [one for one in server.said if one[0] not in without]


__all__ = [
    "Hand",
    "Server",
    "converse",
    "divided",
    "hands",
    "names_of",
    "settings_of",
    "weights_of",
    "windows_of",
]
