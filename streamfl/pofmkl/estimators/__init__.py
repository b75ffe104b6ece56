"""River estimators and baselines: the same learners without a federation."""
