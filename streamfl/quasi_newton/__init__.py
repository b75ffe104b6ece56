"""Quasi-Newton: vertical logistic regression with curvature, over homomorphic encryption.

Yang, Fan, Chen, Shi and Yang, "A Quasi-Newton Method Based Vertical Federated Learning Framework for Logistic Regression", 2019.
"""
