"""Formats that first make plain content of a record's bytes, and then what the reader wants of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import msgspec

__all__ = ["PlainContent"]

Decoded = TypeVar("Decoded")


class PlainContent(ABC):
    """A format that has :meth:`_read`.

    strict: whether a number has to be one, and not text.
    """

    strict: ClassVar[bool] = True

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; it raises msgspec.ValidationError, and what :meth:`_read`
        raises."""
        if type is Any:
            return cast(Callable[[bytes], Decoded], self._read)
        return lambda value: msgspec.convert(self._read(value), type, strict=self.strict)

    @abstractmethod
    def _read(self, value: bytes) -> Any:
        """The content of a record. ValueError if it cannot be read, IgnoredRecord if it is no message,
        BadRecord or NotYetReadable if its schema cannot be used."""
