"""Quasi-Newton: vertical logistic regression with curvature, over homomorphic encryption.

Yang, Fan, Chen, Shi and Yang, "A Quasi-Newton Method Based Vertical Federated Learning Framework for Logistic Regression", 2019.
"""

from streamfl.contract.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="quasi-newton",
    summary="a scorecard over columns of several parties, under encryption",
    kinds=("quasi-newton-guest", "quasi-newton-host", "quasi-newton-coordinator"),
    roles="streamfl.quasi_newton.roles:ROLES",
    rank=3,
    simulate="streamfl.quasi_newton.tools.commands:simulate",
    demo="streamfl.quasi_newton.tools.demo:demo",
    sources={
        "quasi-newton-guest": "streamfl.simulation.sources:entity_samples_and_labels",
        "quasi-newton-host": "streamfl.simulation.sources:entity_samples_and_labels",
    },
    standings={
        "quasi-newton-guest": "streamfl.quasi_newton.tools.standing:party_standing",
        "quasi-newton-host": "streamfl.quasi_newton.tools.standing:party_standing",
        "quasi-newton-coordinator": "streamfl.quasi_newton.tools.standing:coordinator_standing",
    },
    dashboards="streamfl.quasi_newton.tools.dashboard:DASHBOARDS",
    alerts="streamfl.quasi_newton.tools.alerts:ALERTS",
    report="streamfl.quasi_newton.tools.page:REPORTS",
    commands={
        "keys": "streamfl.quasi_newton.tools.keys:keys",
        "scorecard": "streamfl.quasi_newton.tools.export:scorecard",
    },
    extras={"paillier": "encryption (encryption.precision = \"paillier\")"},
    refusals={
        "alignment": "a message of a training with other common entities or batches",
        "ciphertext_bare": "a ciphertext that is not blinded",
        "ciphertext_factor": "a ciphertext that is not coprime to n",
        "ciphertext_range": "a ciphertext that is not between 1 and n squared",
        "ciphertext_repeated": "a vector has the same ciphertext twice",
        "envelope": "it was not sealed with the link's secret for this topic and round",
        "out_of_bounds": "a decrypted number beyond the public bound of its kind",
        "repeated": "an alignment that names an entity twice",
        "repeated_decryption": "a second number to decrypt for the same party, round and kind",
        "unpinned_key": "a Paillier key with another fingerprint than the settings'",
        "weak_key": "a Paillier key that is easy to break, or does not fit the blinding",
    },
)
