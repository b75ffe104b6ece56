"""Records that a server of DP Frank-Wolfe publishes, for a person at a terminal or a program behind a
pipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from streamfl.contract.role import BadRecord, Record
from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.server.role import PublishedModel
from streamfl.identity import load_identity, signer_of_record

__all__ = ["model"]


def model(settings: DPFrankWolfeSettings) -> Callable[[Record], Mapping[str, Any]]:
    """Reads a record of the model: a party's columns and weights. Or why it is refused: with keys, it has to
    be the server's.

    A refused record shows nothing of its content, so that nobody applies it.
    """
    identity = load_identity(settings)
    check = None if identity is None else signer_of_record(identity, SERVER)

    def says(record: Record) -> Mapping[str, Any]:
        try:
            if check is not None:
                check(record)
        except BadRecord as error:
            return {"refused": error.reason, "why": error.text}
        try:
            return msgspec.structs.asdict(msgspec.json.decode(record.value or b"", type=PublishedModel))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecord("malformed", f"a model: {error}") from None

    return says
