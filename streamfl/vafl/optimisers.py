"""The optimisers of :mod:`streamfl.optimisers`, by the name that they had here."""

from streamfl.optimisers import AdaGrad, Optimiser, OptimiserName, finite_step, optimiser_named

__all__ = ["AdaGrad", "Optimiser", "OptimiserName", "finite_step", "optimiser_named"]
