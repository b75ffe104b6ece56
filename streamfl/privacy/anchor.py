"""A file beside the secret that records how far a ledger has come, which a changelog alone cannot prove.

A changelog that is rolled back or cut off looks like one that never went further. The party would then forget
what it spent, and could release other content in place of what it released already. So it writes the hash of
each release here before it sends the release. The file only grows, each link is on the disk before it is
acknowledged, and a link is never replaced by another.

The file: a header of 512 bytes, a JSON object and spaces, and then 32 bytes for each link: its lane, its
number there, and the first 24 bytes of a hash. A link lies within one sector of a disk. Lanes are independent
chains: work that is done again after a crash comes in the same order within a lane, but perhaps in another
order between two lanes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from streamfl.contract.role import ConfigurationError

__all__ = [
    "FORMAT",
    "IDENTITY_BYTES",
    "LANES",
    "LINK_BYTES",
    "RESTORE",
    "Anchor",
    "examine_link",
    "note_link",
    "nothing_released",
]

FORMAT = "streamfl anchor/1"
HEADER_BYTES = 512
LINK_BYTES = 24
NUMBER_BYTES = 7
LANES = 16
IDENTITY_BYTES = 16
RECORD_BYTES = 1 + NUMBER_BYTES + LINK_BYTES
# Records that are read at once.
AT_ONCE = 64
# Records read at a time to find where the other lane ends.
LATEST_AT_ONCE = 16_384
# After a loss of power the disk may have made the file longer without writing the content.
UNWRITTEN = bytes(RECORD_BYTES)
RESTORE = "put back the newest copies of the ledger's topic, of the ledger file and of this member's state"


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    ledger: str
    party: str
    identity: str


class _Found(NamedTuple):
    """A link's number, its hash, and where its record begins in the file."""

    number: int
    link: bytes
    at: int


@dataclass(frozen=True)
class Anchor:
    """The file of a party's ledger. identity: random bytes, drawn when the file was made; no two anchors have
    the same."""

    path: str
    ledger: str
    party: str
    identity: bytes

    @classmethod
    def create(cls, path: str | Path, ledger: str, party: str) -> Anchor:
        """Make a file that no other user may read; ConfigurationError if it exists already or cannot be
        made."""
        header = _Header(FORMAT, ledger, party, secrets.token_bytes(IDENTITY_BYTES).hex())
        content = msgspec.json.encode(header).ljust(HEADER_BYTES - 1) + b"\n"
        if len(content) != HEADER_BYTES:
            raise ConfigurationError("the names of ledger and party are too long for a ledger file")
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            folder = os.open(Path(path).parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileExistsError:
            raise ConfigurationError(f"{path}: exists already; a ledger is made only once") from None
        except (OSError, ValueError) as error:
            # ValueError: a zero byte in the path.
            raise ConfigurationError(
                f"{path}: cannot be made: {getattr(error, 'strerror', None) or error}"
            ) from None
        return cls(str(path), ledger, party, bytes.fromhex(header.identity))

    @classmethod
    def open(cls, path: str | Path, ledger: str, party: str, key: str = "privacy.ledger_file") -> Anchor:
        """The anchor in a file. ConfigurationError if the file cannot be used, or belongs to another ledger
        or party.

        key: the setting that names the file.
        """
        how = "make one with `streamfl ledger init CONFIG`, if nothing was ever released of these data"
        try:
            with Path(path).open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(HEADER_BYTES)
        except (OSError, ValueError) as error:
            text = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{key} = {str(path)!r}: cannot be read: {text}; {how}") from None
        if mode & 0o077:
            raise ConfigurationError(
                f"{key} = {str(path)!r}: other users may read or write it: run chmod 600 {path}"
            )
        try:
            header = msgspec.json.decode(content, type=_Header)
            identity = bytes.fromhex(header.identity)
        except ValueError:
            raise ConfigurationError(f"{key} = {str(path)!r}: is no ledger file; {how}") from None
        if len(content) != HEADER_BYTES or header.format != FORMAT or len(identity) != IDENTITY_BYTES:
            raise ConfigurationError(f"{key} = {str(path)!r}: is no ledger file of this release; {how}")
        if (header.ledger, header.party) != (ledger, party):
            raise ConfigurationError(
                f"{key} = {str(path)!r}: belongs to the ledger {header.ledger!r} of the party "
                f"{header.party!r}, not to {ledger!r} of {party!r}; {how}"
            )
        return cls(str(path), ledger, party, identity)

    def links(self, lane: int = 0) -> list[bytes]:
        """All links of a lane, oldest first. A record torn by a crash was never acknowledged, and does not
        count."""
        with Path(self.path).open("rb") as file:
            return [found.link for found in self._backwards(file.fileno(), lane)][::-1]

    def note(
        self,
        number: int,
        link: bytes,
        lane: int = 0,
        before: bytes | None = None,
        most: Mapping[int, int] | None = None,
    ) -> str | None:
        """Write link ``number`` of a lane, counted from 1. Returns None once it is on the disk, otherwise why
        it is refused.

        The link is accepted if the lane ends just before it, or has the same link there: the same work, done
        again after a crash.

        before: the link before it in the state; None: it is not compared.
        most: for a new link, by lane, the most links that another lane may have.
        """
        if len(link) != LINK_BYTES or not 1 <= number < 2**56 or not 0 <= lane < LANES:
            raise ValueError(f"link {number} of {len(link)} bytes in lane {lane}")
        with self._locked() as file:
            have, there = self._find(file, lane, number)
            if number > have + 1:
                return _ends_before(number - 1, have)
            if before is not None and number > 1:
                previous = self._find(file, lane, number - 1)[1]
                if previous is None or previous.link != before:
                    return _another(number - 1, have)
            at = HEADER_BYTES + RECORD_BYTES * self._count(file)
            if number <= have:
                if there is None or there.link != link:
                    return _another(number, have)
                # Written again: the first writer may have been killed before the link was on the disk, and
                # after a failed write the disk does not try again by itself.
                at = there.at
            else:
                for other, count in (most or {}).items():
                    if (found := self._latest(file, other)) > count:
                        return _further(found, count)
                os.ftruncate(file, at)
            written = os.pwrite(file, bytes([lane + 1]) + number.to_bytes(NUMBER_BYTES, "big") + link, at)
            os.fsync(file)
            if written != RECORD_BYTES:
                raise OSError(f"{self.path}: {written} of {RECORD_BYTES} bytes were written")
        return None

    def examine(self, number: int, link: bytes, lane: int = 0) -> int | str:
        """How many links the file has beyond a ledger that ends with ``link``, its link ``number``; or why
        they disagree.

        The file may be ahead: work whose link was written before a crash is done again.
        """
        with Path(self.path).open("rb") as file:
            have, there = self._find(file.fileno(), lane, number)
        if number > have:
            return _ends_before(number, have)
        return (
            have - number
            if number == 0 or (there is not None and there.link == link)
            else _another(number, have)
        )

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if (
                msgspec.json.decode(os.pread(file, HEADER_BYTES, 0), type=_Header).identity
                != self.identity.hex()
            ):
                raise ConfigurationError(f"{self.path}: another ledger file was put in its place")
            yield file
        finally:
            os.close(file)

    def _find(self, file: int, lane: int, number: int) -> tuple[int, _Found | None]:
        """The number of links in a lane, and link ``number``. Searches from the end, where the link usually
        is."""
        have = 0
        for found in self._backwards(file, lane):
            have = have or found.number
            if found.number <= number:
                return have, found if found.number == number else None
            if number == 0:
                break
        return have, None

    def _latest(self, file: int, lane: int) -> int:
        """The number of links in a lane. Its last one may lie behind a million of the other lane."""
        end = self._count(file)
        while end:
            begin = max(0, end - LATEST_AT_ONCE)
            content = os.pread(file, RECORD_BYTES * (end - begin), HEADER_BYTES + RECORD_BYTES * begin)
            place = content[::RECORD_BYTES].rfind(lane + 1)
            if place >= 0:
                at = RECORD_BYTES * place + 1
                return int.from_bytes(content[at : at + NUMBER_BYTES], "big")
            end = begin
        return 0

    def _backwards(self, file: int, lane: int) -> Iterator[_Found]:
        """Links of a lane, newest first."""
        for at, record in self._records(file):
            if record[0] == lane + 1:
                yield _Found(
                    int.from_bytes(record[1 : 1 + NUMBER_BYTES], "big"), record[1 + NUMBER_BYTES :], at
                )

    def _records(self, file: int) -> Iterator[tuple[int, bytes]]:
        """Offset and content of each record, newest first."""
        end = self._count(file)
        while end:
            begin = max(0, end - AT_ONCE)
            first = HEADER_BYTES + RECORD_BYTES * begin
            content = os.pread(file, RECORD_BYTES * (end - begin), first)
            for at in range(len(content) - RECORD_BYTES, -1, -RECORD_BYTES):
                yield first + at, content[at : at + RECORD_BYTES]
            end = begin

    def _count(self, file: int) -> int:
        """Number of records that were written whole. No record begins with a byte 0."""
        count = (os.fstat(file).st_size - HEADER_BYTES) // RECORD_BYTES
        while (
            count > 0 and os.pread(file, RECORD_BYTES, HEADER_BYTES + RECORD_BYTES * (count - 1)) == UNWRITTEN
        ):
            count -= 1
        return max(count, 0)


def note_link(content: bytes) -> bytes:
    """:meth:`Anchor.note` as work. content: (path, ledger, party, identity) and its arguments. Returns b"" or
    why it is refused, with what to do."""
    return _done(Anchor.note, content)


def examine_link(content: bytes) -> bytes:
    """:meth:`Anchor.examine` as work, likewise. Returns digits, or why file and ledger disagree, with what to
    do."""
    return _done(Anchor.examine, content)


def _done(method: Callable[..., int | str | None], content: bytes) -> bytes:
    """The method's result as bytes. An error of the disk is a reason to release nothing, and no fault of the
    program."""
    path, ledger, party, identity, *given = msgspec.msgpack.decode(content)
    anchor = Anchor(path, ledger, party, identity)
    remedy = RESTORE
    try:
        found = method(anchor, *given)
        if not isinstance(found, str):
            return b"" if found is None else b"%d" % found
        why = found
    except OSError as error:
        why = f"the ledger file {anchor.path} cannot be used: {error.strerror or error}"
        remedy = "make room for the file, or put it back, and restart this worker"
    except msgspec.DecodeError:
        why = f"the ledger file {anchor.path} is not a ledger file any more"
    except ConfigurationError as error:
        why = str(error)
    return nothing_released(why, remedy).encode()


def nothing_released(why: str, remedy: str = RESTORE) -> str:
    """Why nothing is released any more, and what to do about it."""
    return f"{why}. Nothing more is released: {remedy}"


def _another(number: int, have: int) -> str:
    return (
        f"the ledger file has another release as number {number} of {have}: the state was rolled back or "
        "truncated, or two workers use one ledger"
    )


def _ends_before(number: int, have: int) -> str:
    return (
        f"the ledger file ends after {have} releases, the state has {number}: the file was rolled back or "
        "truncated"
    )


def _further(have: int, known: int) -> str:
    return (
        f"the ledger file has {have} releases of another chain, the state has {known}, and none wait to be "
        "repeated: the ledger's topic was rolled back or truncated, or two workers use one ledger"
    )
