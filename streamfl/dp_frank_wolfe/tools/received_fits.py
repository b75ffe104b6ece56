"""The members' messages, window by window, and the iterate, from messages alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Record
from streamfl.dp_frank_wolfe.learning.blocks import step_length
from streamfl.dp_frank_wolfe.learning.iterate import Iterate, Vertex
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import (
    Answers,
    Ask,
    Chosen,
    Entities,
    FittedModel,
    Frozen,
    Manifest,
    Message,
    OtherRows,
    Products,
    VertexAnswer,
    codec,
    read_content,
)
from streamfl.dp_frank_wolfe.party.manifest import numbered, rows_of
from streamfl.dp_frank_wolfe.tools.members import BETWEEN
from streamfl.roles.fragment_encoding import Fragment, decoded_in_fragments
from streamfl.runtime.bus import Outgoing

__all__ = ["ReceivedFit", "ReceivedFits", "iterates"]

Floats = NDArray[np.float64]


@dataclass
class ReceivedFit:
    """Messages of one window. manifest: names of its rows. means: by party that centres, as released.

    asks, answers: by iteration and party.
    chosen, others, products: by party, where columns are chosen once.
    models: by party, its weights.
    """

    manifest: list[str] = field(default_factory=list)
    means: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    asks: dict[tuple[int, str], Ask] = field(default_factory=dict)
    answers: dict[tuple[int, str], Answers] = field(default_factory=dict)
    chosen: dict[str, Chosen] = field(default_factory=dict)
    others: dict[str, OtherRows] = field(default_factory=dict)
    products: dict[str, Products] = field(default_factory=dict)
    models: dict[str, Floats] = field(default_factory=dict)

    @property
    def uplink_numbers(self) -> int:
        """Numbers that the parties sent: signed indices, and numbers of columns."""
        told = [one for answers in self.answers.values() for one in answers.answers]
        chosen, products = self.chosen.values(), self.products.values()
        numbers = sum(len(one.sums) for one in told) + sum(
            len(one.values) + len(one.norms) + len(one.rows) for one in chosen
        )
        numbers += sum(len(one.products) + len(one.gram) for one in products)
        return (
            len(told)
            + sum(len(one.columns) // 4 for one in chosen)
            + numbers // 8
            + sum(map(len, self.means.values()))
        )


class ReceivedFits:
    """Notes every message between members.

    public: of the settings.
    whole: whether to keep predictions in the space of sketches, which are large and which a trace needs.
    iterations: how many have begun, of all fits.
    announced: number of names, each once for each party.
    """

    def __init__(self, public: Public, whole: bool = False) -> None:
        settings = public.settings
        self._public = public
        own = codec(settings.message_bytes)
        self._party = {
            f"{settings.federation.name}.{name}.{kind}": name for name in public.parties for kind in BETWEEN
        }
        self._decode_whole = own.decode
        self._keeps_others = whole
        self._decode = decoded_in_fragments(own.read)
        # Received parts of long messages, by topic and digest.
        self._parts: dict[tuple[str, bytes], list[bytes]] = {}
        self._names: dict[str, dict[int, str]] = {name: {} for name in public.parties}
        self.iterations = self.announced = 0
        self.fits: dict[int, ReceivedFit] = {}

    @property
    def over(self) -> int:
        """How many fits have ended."""
        return sum(len(fit.models) == len(self._public.parties) for fit in self.fits.values())

    def __call__(self, record: Outgoing) -> None:
        party = self._party.get(record.topic)
        if party is None or record.value is None:
            return
        message = self._decode(Record(record.topic, 0, 0, None, record.value))
        if isinstance(message, Fragment):
            parts = self._parts.setdefault((record.topic, message.digest), [])
            parts.append(message.content)
            if sum(map(len, parts)) < message.size:
                return
            message = self._decode_whole(b"".join(self._parts.pop((record.topic, message.digest))))
        if isinstance(message, Message) and message.kind == "entities":
            told: Entities = read_content(message.content, Entities)
            self.announced += len(told.names)
            self._names[party] |= numbered([(told.first, told.names)])
        elif isinstance(message, Message) and message.window:
            self._note(party, message, self.fits.setdefault(message.window, ReceivedFit()))

    def _note(self, party: str, message: Message, fit: ReceivedFit) -> None:
        content, place = message.content, (message.iteration, party)
        if message.kind == "manifest":
            fit.manifest = rows_of(
                read_content(content, Manifest), self._public.settings.window.rows, self._names[party]
            )
        elif message.kind == "frozen":
            if means := read_content(content, Frozen).means:
                fit.means[party] = np.frombuffer(means, "<i8").astype(np.int64)
        elif message.kind == "ask":
            ask: Ask = read_content(content, Ask)
            fit.asks[place] = ask if self._keeps_others else Ask(ask.columns, ask.weights, b"")
            self.iterations = sum(len({iteration for iteration, _ in one.asks}) for one in self.fits.values())
        elif message.kind == "answers":
            fit.answers[place] = read_content(content, Answers)
        elif message.kind == "chosen":
            fit.chosen[party] = read_content(content, Chosen)
        elif message.kind == "rows":
            fit.others[party] = read_content(content, OtherRows)
        elif message.kind == "products":
            fit.products[party] = read_content(content, Products)
        elif message.kind == "model":
            fit.models[party] = weights_of(
                read_content(content, FittedModel), self._public.settings.federation.columns[party]
            )


def weights_of(content: Ask | FittedModel, columns: int) -> Floats:
    """x of a party's columns, from a message."""
    x = np.zeros(columns)
    x[np.frombuffer(content.columns, "<u4")] = np.frombuffer(content.weights, "<f8")
    return x


def iterates(public: Public, fit: ReceivedFit) -> list[dict[str, Floats]]:
    """x by party, before each step and after the last one. For an estimator that chooses once: only at the
    end."""
    if not fit.asks:
        return [fit.models]
    columns = public.settings.federation.columns
    iterate, found = Iterate(public.blocks, columns), []
    for iteration in range(max(number for number, _ in fit.asks) + 1):
        before = {party: own.copy() for party, own in iterate.x.items()}
        found.append(before)
        for party in public.parties:
            if (iteration, party) in fit.asks:
                assert np.array_equal(
                    weights_of(fit.asks[iteration, party], columns[party]), before[party]
                ), "another iterate"
        given = [one for party in public.parties for one in _answers(fit, iteration, party)]
        vertices = {one.block: Vertex(one.column, 1 if one.positive else -1) for one in given}
        iterate.step(vertices, step_length(iteration, public.sampling.least))
    # A fit that ends by its gap takes no step with the last answers.
    if all(np.array_equal(own, fit.models[party]) for party, own in iterate.x.items()):
        found.append(iterate.x)
    assert all(np.array_equal(own, fit.models[party]) for party, own in found[-1].items()), "another model"
    return found


def _answers(fit: ReceivedFit, iteration: int, party: str) -> list[VertexAnswer]:
    answers = fit.answers.get((iteration, party))
    return [] if answers is None else list(answers.answers)
