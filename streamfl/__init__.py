"""streamfl: online federated learning as long-running Kafka consumers."""

from typing import Any

from streamfl.role import ConfigurationError, PeerError
from streamfl.system import installed_systems, load

__all__ = ["ConfigurationError", "PeerError"]

_LOADED_WHEN_ASKED = {"simulate": "streamfl.simulation.notebook:simulate"}


def __getattr__(name: str) -> Any:
    """What a system exports, such as an estimator: loaded when it is asked for, for a worker on a bus has no use for it."""
    if name in _LOADED_WHEN_ASKED:
        return load(_LOADED_WHEN_ASKED[name])
    for system in installed_systems():
        if name in system.exports:
            return load(system.exports[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_LOADED_WHEN_ASKED, *(name for system in installed_systems() for name in system.exports)]
