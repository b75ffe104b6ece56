"""Rights on a cluster with access control, in Kafka's words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Guarded", "Right"]


@dataclass(frozen=True)
class Right:
    """Operations that a principal may do on a resource. resource: topic, group or transactional-id. pattern:
    literal or prefixed.

    >>> Right("User:shop", "topic", "loans.shop.state", "literal", ("Read", "Write")).arguments
    '--allow-principal User:shop --operation Read --operation Write --topic loans.shop.state'
    """

    principal: str
    resource: str
    name: str
    pattern: str
    operations: tuple[str, ...]

    @property
    def arguments(self) -> str:
        """The same as arguments of kafka-acls.sh, for a shell."""
        words = ["--allow-principal", self.principal]
        for operation in self.operations:
            words += ["--operation", operation]
        words += [f"--{self.resource}", self.name]
        if self.pattern != "literal":
            words += ["--resource-pattern-type", self.pattern]
        return shlex.join(words)


@runtime_checkable
class Guarded(Protocol):
    """A bus that can tell which rights its user has."""

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """Those of these rights that the user lacks, each with the missing operations only, as far as the
        cluster tells.

        BusUnavailable if the cluster does not answer.
        """
