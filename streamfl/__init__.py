"""streamfl: online federated learning as long-running Kafka consumers."""

from streamfl.estimators import POFMKLClassifier, POFMKLRegressor
from streamfl.role import ConfigurationError, PeerError

__all__ = ["ConfigurationError", "POFMKLClassifier", "POFMKLRegressor", "PeerError"]
