"""streamfl: online federated learning as long-running Kafka consumers."""

from typing import TYPE_CHECKING, Any

from streamfl.role import ConfigurationError, PeerError

if TYPE_CHECKING:
    from streamfl.estimators import POFMKLClassifier, POFMKLRegressor

__all__ = ["ConfigurationError", "POFMKLClassifier", "POFMKLRegressor", "PeerError"]


def __getattr__(name: str) -> Any:
    # River and pandas take most of a second to import, which a worker on a bus has no use for.
    if name in {"POFMKLClassifier", "POFMKLRegressor"}:
        from streamfl import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
