"""VAFL: parties that know different things about the same entities learn together, each at its own pace.

Chen, Jin, Sun and Yin, "VAFL: a Method of Vertical Asynchronous Federated Learning", 2020.
"""
