"""Quasi-Newton: vertical logistic regression with curvature, over homomorphic encryption.

Yang, Fan, Chen, Shi and Yang, "A Quasi-Newton Method Based Vertical Federated Learning Framework for Logistic
Regression", 2019."""

from streamfl.contract.refusals import OTHER_SETTINGS, WRITERS, Reason
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
    extras={"paillier": 'encryption (encryption.precision = "paillier")'},
    refusals={
        "alignment": Reason(
            "a message of a training over other common entities, or over other batches of them"
        ),
        "ciphertext_bare": Reason("a ciphertext that is not blinded: anybody could read it", WRITERS),
        "ciphertext_factor": Reason("a ciphertext that is not coprime to n", WRITERS),
        "ciphertext_range": Reason("a ciphertext that is not between 1 and n squared", WRITERS),
        "ciphertext_repeated": Reason(
            "a vector has the same ciphertext twice, although each is blinded anew", WRITERS
        ),
        "envelope": Reason(
            "a message between host and guest that nobody with the link's secret sealed for this topic and "
            "round",
            f"give both ends of the link the same secret, and {WRITERS}",
        ),
        "out_of_bounds": Reason("a decrypted number beyond the public bound of its kind, or not below n"),
        "repeated": Reason("an alignment that names an entity twice"),
        "repeated_decryption": Reason("a second number to decrypt for the same party, round and kind"),
        "unpinned_key": Reason(
            "a Paillier key with another fingerprint than the settings'",
            "compare the fingerprints with streamfl keys at both members",
        ),
        "weak_key": Reason(
            "a Paillier key that is easy to break, or not fit for blinding",
            "make another key with streamfl keys",
        ),
    },
    notices={
        "alignment": Reason("points of the guest that came early are refused", OTHER_SETTINGS),
        "batches": Reason("the most entities have been learnt from, and no further ones will be"),
        "closed": Reason(
            "a host answers no questions about a model: it has answered for scoring.versions of them",
            "raise scoring.versions at the host",
        ),
        "columns": Reason("columns have too little support in a batch and are left out"),
        "failed": Reason("a training has ended without a model", "the text says why and what to change"),
        "muted": Reason(
            "rows are so far out that a gradient would reveal their labels: the training uses zeros instead",
            "preprocessing.method = clip and rank leave fewer such rows",
        ),
    },
)
