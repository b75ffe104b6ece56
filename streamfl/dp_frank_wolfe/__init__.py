"""Sparse linear models of features that belong to several parties, with a differential privacy that is computed and enforced.

Lou and Cheung, "Uplink Communication Efficient Differentially Private Sparse Optimization with Feature-Wise Distributed Data",
AAAI 2018.
"""

from streamfl.contract.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="dp-frank-wolfe",
    summary="a sparse linear model over columns of several parties, under a budget of differential privacy",
    kinds=("dp-frank-wolfe-party", "dp-frank-wolfe-server"),
    roles="streamfl.dp_frank_wolfe.roles:ROLES",
    rank=4,
    simulate="streamfl.dp_frank_wolfe.tools.commands:simulate",
    demo="streamfl.dp_frank_wolfe.tools.demo:demo",
    sources={"dp-frank-wolfe-party": "streamfl.simulation.sources:entity_samples_and_labels"},
    standings=dict.fromkeys(
        ("dp-frank-wolfe-party", "dp-frank-wolfe-server"), "streamfl.simulation.system_tools:what_learning_waits_for"
    ),
    dashboards="streamfl.dp_frank_wolfe.tools.dashboard:DASHBOARDS",
    alerts="streamfl.dp_frank_wolfe.tools.alerts:ALERTS",
    report="streamfl.dp_frank_wolfe.tools.page:REPORTS",
    readers={"model": "streamfl.dp_frank_wolfe.tools.readable:model"},
    commands={"ledger": "streamfl.dp_frank_wolfe.tools.ledger:ledger"},
    refusals={
        "another_answer": "a party sent other content than before at this place of the fit",
        "another_ask": "the server sent other content than before at this place of the fit",
        "another_manifest": "a party has frozen other rows than the server's, or a manifest's numbers belong to other entities",
        "another_sketch": "a column that was already sent",
        "budget": "a window with entities that have no budget left, or no room in the ledger",
        "full": "a record of a new entity, but window.limit entities wait already",
        "ledger": "the ledger and its file do not agree",
        "ledger_went_back": "a release that does not follow those before it in its party's ledger",
        "out_of_bounds": "a sum larger than noise can explain",
        "quota": "a party chose or sent more columns than its share",
    },
)
