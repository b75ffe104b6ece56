"""streamfl: online federated learning as long-running Kafka consumers."""

from typing import Any

# Packages, the image, the command line and changelog records take the version from here; a test compares the
# deployments' files.
__version__ = "0.3.0.dev0"

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.contract.system import installed_systems, load

__all__ = ["BadRecord", "ConfigurationError"]

# Exports besides those of systems. They are loaded when they are used, because a worker does not need them.
OWN = {"connect": "streamfl.connection:connect", "simulate": "streamfl.simulation.notebook:simulate"}


def __getattr__(name: str) -> Any:
    """An export of this package or of a system, such as an estimator."""
    if name in OWN:
        return load(OWN[name])
    for system in installed_systems():
        if name in system.exports:
            return load(system.exports[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *OWN, *(name for system in installed_systems() for name in system.exports)]
