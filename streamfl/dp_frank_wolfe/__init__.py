"""Sparse linear models of features that belong to several parties, with a differential privacy that is computed and enforced."""
