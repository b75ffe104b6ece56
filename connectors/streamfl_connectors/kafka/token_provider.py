"""How kafka-python gets the tokens of OAuth."""

from __future__ import annotations

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from streamfl.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable
from streamfl_connectors.tokens import Tokens

__all__ = ["TokenProvider"]


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """What the library asks whenever it logs in, and again before the broker would end the connection."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        """A token that is good for a while yet."""
        try:
            return self._tokens.token().text
        except (BusUnavailable, ConfigurationError) as error:
            # Once a worker runs, this is waited for like a broker that is away.
            raise KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """What is sent beside the token, by name."""
        return self._tokens.extensions
