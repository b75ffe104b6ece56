"""FDSKL: kernel learning over columns that stay with different parties, by masked partial sums of random features.

Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data", 2020.
"""
