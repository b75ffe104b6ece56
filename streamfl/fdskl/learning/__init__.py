"""The mathematics: iterations, their solvers, and the model's coefficients."""
