"""VAFL: parties that know different things about the same entities learn together, each at its own pace.

Chen, Jin, Sun and Yin, "VAFL: a Method of Vertical Asynchronous Federated Learning", 2020.
"""

from streamfl.contract.refusals import Reason
from streamfl.contract.system import System

__all__ = ["SYSTEM"]

ONE_SENDER = "let one process send for the party, and check who may write to its topics"

SYSTEM = System(
    name="vafl",
    summary="parties with columns of their own",
    kinds=("vafl-party", "vafl-coordinator"),
    roles="streamfl.vafl.roles:ROLES",
    rank=1,
    simulate="streamfl.vafl.tools.commands:simulate",
    demo="streamfl.vafl.tools.demo:demo",
    sources={
        "vafl-party": "streamfl.simulation.sources:entity_samples",
        "vafl-coordinator": "streamfl.simulation.sources:entity_labels",
    },
    dashboards="streamfl.vafl.tools.dashboard:DASHBOARDS",
    alerts="streamfl.vafl.tools.alerts:ALERTS",
    report="streamfl.vafl.tools.page:REPORTS",
    notices={
        "duplicate_embedding": Reason("an embedding came again and had no effect", ONE_SENDER),
        "superseded": Reason("an embedding came after a later one", ONE_SENDER),
    },
    extras={"torch": "a party's network from PyTorch (embedding.model)"},
)
