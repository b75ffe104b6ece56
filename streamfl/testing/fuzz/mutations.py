"""Makes wrong messages from real ones, by a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec

from streamfl.encoding.wire import MAXIMUM_BYTES
from streamfl.testing.fuzz.bounds import near, numbers_near_bounds, patterns_near_bounds

__all__ = ["FuzzedRecord", "Mutator"]

# Values that programs handle wrongly: limits of number types, values that compare oddly, and characters that
# control terminals or are invalid.
NUMBERS: list[Any] = [
    *(sign * (2**bits + add) for sign in (1, -1) for bits in (0, 8, 31, 53, 63) for add in (-1, 0, 1)),
    2**64 - 1,
    2**64,
    10**400,
    *(
        0.0,
        -0.0,
        0.5,
        1e18,
        -1e18,
        3.4e38,
        3.5e38,
        1.7e308,
        -1.7e308,
        5e-324,
        -5e-324,
        1e-310,
        1e-45,
        2.2250738585072014e-308,
    ),
    *(3.4028234663852886e38, -3.4028234663852886e38, 1.7976931348623157e308, -1.7976931348623157e308),
    *(float("nan"), float("inf"), float("-inf")),
]
TEXTS = [
    "",
    " ",
    "\0",
    "press-1",
    "press-2",
    "\x1b]0;x\x07",
    "\u202egnp",
    "\ud800",
    "\udfff",
    "\ufeff",
    "e\u0301",
    "\U0010ffff",
    "../x",
    "client/press-1",
    "NaN",
    "1",
    "true",
    "a" * 256,
    "a" * 257,
    "ü" * 300,
    "version",
]
OTHERS: list[Any] = [
    None,
    True,
    False,
    b"",
    b"\0" * 16,
    b"\xff" * 16,
    [],
    {},
    [[]],
    {"": None},
    msgspec.msgpack.Ext(5, b"x"),
]
# Bytes of IEEE numbers in arrays: NaN, infinities, denormals, negative zeros and the largest of both signs,
# in both sizes.
PATTERNS = [
    bytes.fromhex(pattern)
    for pattern in (
        "0000c07f", "0100807f", "0000807f", "000080ff", "01000000", "ffff7f00", "ffff7f7f", "ffff7fff",
        "00000080",
        "000000000000f87f", "000000000000f07f", "000000000000f0ff", "0100000000000000", "ffffffffffffef7f",
        "ffffffffffffefff",
        "0000000000000080", "ffffffffffff0f80",
    )
]  # fmt: skip
# First bytes of MessagePack values, among them lengths that exceed any memory.
HEADERS = [
    bytes.fromhex(header)
    for header in (
        "dbffffffff", "c6ffffffff", "ddffffffff", "dfffffffff", "c9ffffffff05", "daffff", "dcffff", "deffff",
        "dc000a",
        "dd0000000a", "c1", "cf8000000000000000", "cfffffffffffffffff", "d38000000000000000",
        "cb7ff8000000000000", "ca7f800000",
        "d6ff00000000",
        "d7ffffffffffffffffff", "c70cffffffffffffffffffffffff",
    )
]  # fmt: skip
BRACKETS = [(b"\x91", b"\x90"), (b"\x81\xa0", b"\x80"), (b"[", b"]"), (b'{"a":', b"}"), (b"[[", b"]]")]
DEPTHS = [10, 200, 1000, 5000, 100_000]


@dataclass(frozen=True)
class FuzzedRecord:
    """A record's key, value and partition on one of a role's inputs or tables."""

    channel: str
    key: bytes | None
    value: bytes | None
    partition: int = 0


class Mutator:
    """Makes wrong messages from ``corpus``. The same ``random`` gives the same messages."""

    def __init__(self, random: Random, corpus: Sequence[FuzzedRecord]) -> None:
        self._random = random
        self._corpus = corpus
        self._real = frozenset(corpus)
        self._on_bytes: list[Callable[[bytearray], None]] = [
            self._flip, self._overwrite, self._cut, self._drop, self._repeat, self._splice, self._pattern,
            self._header,
            self._append,
        ]  # fmt: skip

    def message(self) -> FuzzedRecord:
        """A real message with one or more errors. The result may be valid, but is never a message of the
        corpus."""
        while (message := self._wrong()) in self._real:
            pass
        return message

    def _wrong(self) -> FuzzedRecord:
        random = self._random
        message = random.choice(self._corpus)
        value, key, partition = message.value or b"", message.key, message.partition
        for _ in range(1 + (random.random() < 0.3) + (random.random() < 0.1) * 6):
            value = self._structure(value) if random.random() < 0.7 else self._bytes(value)
        if random.random() < 0.15:
            key = self._key(key)
        if random.random() < 0.02:
            partition = random.choice([0, 1, 2, 7, 2**31 - 1])
        whole = random.random()
        if whole < 0.01:
            value = self._nested()
        elif whole < 0.0105:
            value += bytes(MAXIMUM_BYTES + 1 - len(value))
        return replace(message, key=key, value=None if whole > 0.995 else value, partition=partition)

    def _key(self, key: bytes | None) -> bytes | None:
        random = self._random
        chosen = random.randrange(4)
        if chosen == 0:
            return random.choice(
                [
                    None,
                    b"",
                    b"\xff\xfe",
                    b"version",
                    b"kernel/0",
                    b"kernel/-1",
                    b"client/press-1",
                    b"x" * 5000,
                ]
            )
        if chosen == 1:
            return random.choice(TEXTS).encode(errors="surrogatepass")
        if chosen == 2:
            return random.choice(self._corpus).key
        return self._bytes(key or b"")

    # ---- changes of bytes, whatever they mean

    def _bytes(self, value: bytes) -> bytes:
        changed = bytearray(value)
        self._random.choice(self._on_bytes)(changed)
        return bytes(changed)

    def _place(self, value: bytearray) -> int:
        return self._random.randrange(len(value) + 1)

    def _flip(self, value: bytearray) -> None:
        for _ in range(self._random.choice([1, 1, 1, 4, 16])):
            if value:
                value[self._random.randrange(len(value))] ^= 1 << self._random.randrange(8)

    def _overwrite(self, value: bytearray) -> None:
        place = self._place(value)
        value[place : place + 1] = bytes(
            [self._random.choice([0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xFF, self._random.randrange(256)])]
        )

    def _cut(self, value: bytearray) -> None:
        del value[self._place(value) :]

    def _drop(self, value: bytearray) -> None:
        place = self._place(value)
        del value[place : place + self._random.choice([1, 2, 4, 8, 64])]

    def _repeat(self, value: bytearray) -> None:
        place = self._place(value)
        piece = value[place : place + self._random.choice([1, 4, 8, 64])]
        value[place:place] = piece * self._random.choice([1, 2, 100])

    def _splice(self, value: bytearray) -> None:
        other = self._random.choice(self._corpus).value or b""
        value[self._place(value) :] = other[self._random.randrange(len(other) + 1) :]

    def _pattern(self, value: bytearray) -> None:
        pattern = self._random.choice(PATTERNS if self._random.random() < 0.5 else patterns_near_bounds())
        # Counts from the end: a message's array is there, with numbers at multiples of their size.
        place = max(0, len(value) - len(pattern) * self._random.randrange(1, 2 + len(value) // len(pattern)))
        value[place : place + len(pattern)] = pattern

    def _header(self, value: bytearray) -> None:
        header = self._random.choice(HEADERS)
        place = self._place(value)
        value[place : place + self._random.choice([0, len(header)])] = header

    def _append(self, value: bytearray) -> None:
        value += self._random.randbytes(self._random.choice([1, 4, 100]))

    def _nested(self) -> bytes:
        opening, closing = self._random.choice(BRACKETS)
        depth = self._random.choice(DEPTHS)
        return opening * depth + closing * self._random.choice([0, 1, depth])

    # ---- changes of the decoded value

    def _structure(self, value: bytes) -> bytes:
        """Replaces, moves, doubles, removes or adds a field. Returns the bytes unchanged if they have no
        fields."""
        text = value[:1] in (b"{", b"[")
        try:
            tree = json.loads(value) if text else msgspec.msgpack.decode(value)
            places = _places(tree)
            if not places:
                return value
            self._change(*self._random.choice(places))
            if text:
                return json.dumps(tree, ensure_ascii=self._random.random() < 0.5).encode(
                    errors="surrogatepass"
                )
            return msgspec.msgpack.encode(tree)
        except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, TypeError):
            return self._bytes(value)

    def _change(self, container: Any, place: Any) -> None:
        random = self._random
        chosen = random.randrange(8)
        if chosen == 0 and isinstance(container, list):
            container.insert(random.randrange(len(container) + 1), self._value())
        elif chosen == 1:
            del container[place]
        elif chosen == 2:
            container[place] = [container[place]] * random.choice([1, 2, 60])
        elif chosen == 3:
            found = container[place]
            if isinstance(found, bytes):
                changed = bytearray(found)
                random.choice([self._pattern, self._flip, self._cut, self._repeat])(changed)
                container[place] = bytes(changed)
            elif isinstance(found, (int, float)) and not isinstance(found, bool):
                container[place] = random.choice(
                    [found - 2, found - 1, found + 1, found + 2, found + 1000, -found, *near(found)]
                )
            elif isinstance(found, str):
                container[place] = random.choice(
                    [found + "\0", found.upper(), found[:-1], found * 40, found[::-1]]
                )
            else:
                container[place] = self._value()
        elif chosen == 4:
            other = random.choice(list(container if isinstance(container, dict) else range(len(container))))
            container[place], container[other] = container[other], container[place]
        else:
            container[place] = self._value()

    def _value(self) -> Any:
        random = self._random
        kind = random.randrange(6)
        if kind < 3:
            return self._number()
        if kind == 3:
            return random.choice(TEXTS)
        if kind == 4:
            return [self._number() for _ in range(random.choice([1, 2, 3, 50]))]
        return random.choice(OTHERS)

    def _number(self) -> Any:
        return self._random.choice(NUMBERS if self._random.random() < 0.5 else numbers_near_bounds())


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every field of a tree: its container, and its key or index there."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < 500:
        container = waiting.pop()
        if isinstance(container, dict):
            inner = list(container.items())
        elif isinstance(container, list):
            inner = list(enumerate(container))
        else:
            continue
        found += [(container, place) for place, _ in inner]
        waiting += [value for _, value in inner]
    return found
