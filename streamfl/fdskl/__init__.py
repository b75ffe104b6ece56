"""FDSKL: kernel learning over columns that live in different places, by masked sums of phases.

Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data", 2020.
"""

from streamfl.contract.refusals import WRITERS, Reason
from streamfl.contract.system import System

__all__ = ["SYSTEM"]

ASK_ACTIVE = "ask the active party why it keeps asking"

SYSTEM = System(
    name="fdskl",
    summary="parties with columns of their own, a kernel model by masked sums",
    kinds=("fdskl-worker",),
    roles="streamfl.fdskl.roles:ROLES",
    rank=2,
    simulate="streamfl.fdskl.tools.commands:simulate",
    demo="streamfl.fdskl.tools.demo:demo",
    dashboards="streamfl.fdskl.tools.dashboard:DASHBOARDS",
    alerts="streamfl.fdskl.tools.alerts:ALERTS",
    report="streamfl.fdskl.tools.page:REPORTS",
    sources={"fdskl-worker": "streamfl.simulation.sources:entity_samples_and_labels"},
    refusals={
        "topology": Reason(
            "a sum from a party that sends to another one, or over other parties than the sender and those "
            "below it",
            f"give all members the same aggregation.topology, and {WRITERS}",
        )
    },
    notices={
        "first_entities": Reason("learning begins once enough samples were seen to standardise columns by"),
        "implausible_bandwidth": Reason(
            "a round asks for features of a very different bandwidth, whose phases would reveal projections "
            "of columns",
            "if the model starts over with this bandwidth, use another federation.name at every member",
        ),
        "many_distances": Reason("the active party asks for distances again and again", ASK_ACTIVE),
        "no_keys": Reason(
            "federation.members is not set: anybody who may write to the parties' topics can intervene "
            "between two parties and remove the masks from their messages",
            "give the members keys, see docs/identity.md",
        ),
        "range": Reason(
            "this party's part of f is too large to be sent: learning diverges",
            "take a smaller learning.step or a larger learning.regularisation",
        ),
        "round_displaced": Reason(
            "a round was given up because too many are open", "check whether a party is absent"
        ),
        "round_incarnation": Reason("a round was given up because a party restarted"),
        "round_masks": Reason(
            "the masks of a round did not cancel, so its sum is not used: a part was damaged or misplaced"
        ),
        "round_timeout": Reason(
            "a round was not complete in aggregation.round_seconds",
            "start the parties that the text names, or allow more time",
        ),
        "round_version": Reason("a round asked for an old version of the model; it is repeated"),
        "spent_entity": Reason(
            "an entity has released privacy.features_per_entity features: its mean is used from now on",
            "raise that limit where features are replaced and entities are kept for long; otherwise "
            f"{ASK_ACTIVE}",
        ),
        "worse_than_mean": Reason(
            "predictions lose more than the mean of the labels would",
            "raise learning.regularisation and learning.bandwidth_multiplier, or check that labels have the "
            "keys of their samples",
        ),
        "wrong_early_sum": Reason(
            "a sum that came before its round does not fit it",
            "the text begins with the reason for which it was refused",
        ),
    },
)
