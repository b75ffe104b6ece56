"""Gives OAuth tokens to kafka-python."""

from __future__ import annotations

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable
from streamfl_connectors.tokens import Tokens

__all__ = ["TokenProvider"]


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """The library asks it for a token at each login, and again before the broker would end the connection."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        """A token that stays valid for a while."""
        try:
            return self._tokens.token().text
        except (BusUnavailable, ConfigurationError) as error:
            # A running worker waits, as for a broker that is away.
            raise KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """What is sent beside the token, by name."""
        return self._tokens.extensions
