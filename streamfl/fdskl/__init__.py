"""FDSKL: kernel learning over columns that live in different places, by masked sums of phases.

Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data", 2020.
"""
