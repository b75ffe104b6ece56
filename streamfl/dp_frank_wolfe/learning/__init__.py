"""The mathematics: Frank-Wolfe steps, estimators that choose once, sketches, means."""
