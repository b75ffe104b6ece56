"""Sparse linear models of features that belong to several parties, with a differential privacy that is
computed and enforced.

Lou and Cheung, "Uplink Communication Efficient Differentially Private Sparse Optimization with Feature-Wise
Distributed Data", AAAI 2018.
"""

from streamfl.contract.refusals import OTHER_SETTINGS, WRITERS, Reason
from streamfl.contract.system import System

__all__ = ["SYSTEM"]

RESTORE = "put back the newest copies of the ledger's topic, of the ledger file and of this member's state"
TELL_OPERATOR = "tell the party's operator: the budget that was spent since is forgotten"

SYSTEM = System(
    name="dp-frank-wolfe",
    summary="a sparse linear model over columns of several parties, under a budget of differential privacy",
    kinds=("dp-frank-wolfe-party", "dp-frank-wolfe-server"),
    roles="streamfl.dp_frank_wolfe.roles:ROLES",
    rank=4,
    simulate="streamfl.dp_frank_wolfe.tools.commands:simulate",
    demo="streamfl.dp_frank_wolfe.tools.demo:demo",
    sources={"dp-frank-wolfe-party": "streamfl.simulation.sources:entity_samples_and_labels"},
    dashboards="streamfl.dp_frank_wolfe.tools.dashboard:DASHBOARDS",
    alerts="streamfl.dp_frank_wolfe.tools.alerts:ALERTS",
    report="streamfl.dp_frank_wolfe.tools.page:REPORTS",
    readers={"model": "streamfl.dp_frank_wolfe.tools.readable:model"},
    commands={"ledger": "streamfl.dp_frank_wolfe.tools.ledger:ledger"},
    standings={"dp-frank-wolfe-party": "streamfl.dp_frank_wolfe.tools.ledger:party_standing"},
    refusals={
        "another_answer": Reason("a party sent other content than before at this place of the fit", WRITERS),
        "another_ask": Reason(
            "the server sent other content than before at this place of the fit; the party releases only "
            "once there",
            WRITERS,
        ),
        "another_manifest": Reason(
            "a party has frozen other rows than the server's, or a manifest's numbers belong to other "
            "entities; the window goes on without the party",
            f"if the party's state was lost, {RESTORE}; check who may write to its topics",
        ),
        "another_sketch": Reason("a column that the party has already sent", WRITERS),
        "budget": Reason(
            "a window with entities that have no budget left at this party, or no room in its ledger",
            "do not send it back: once window.patience_seconds are over the server asks which entities have "
            "a budget, and makes a window of these. If the ledger has no room, raise privacy.ledger_limit",
        ),
        "full": Reason(
            "a record of a new entity, but window.limit entities wait already",
            "raise window.limit, then send it back",
        ),
        "ledger": Reason(
            "the ledger and its file do not agree, so nothing is released",
            f"{RESTORE}, then send the message back",
        ),
        "ledger_went_back": Reason(
            "a release that does not follow those before it in its party's ledger: an old copy was restored, "
            "or a new one made",
            TELL_OPERATOR,
        ),
        "out_of_bounds": Reason("a sum larger than noise can explain"),
        "quota": Reason(
            "a party chose or sent more columns than its share of learning.columns", OTHER_SETTINGS
        ),
    },
    notices={
        "away": Reason(
            "a party has not answered for window.patience_seconds: the window continues without it",
            "start the party",
        ),
        "exact": Reason(
            "serving.mode is exact: parts of predictions come without noise, which epsilon does not cover"
        ),
        "fits_ahead": Reason(
            "the ledger file has releases that the state has not: parts of predictions wait for the server's "
            "messages",
            f"if none come, {RESTORE}",
        ),
        "lacking_parts": Reason(
            "no prediction was made for window.patience_seconds, because a party's parts do not come",
            "check that the party runs, and that records of the same entities come there. A part waits for a "
            "day",
        ),
        "ledger": Reason(
            "nothing more is released: the ledger cannot be continued", f"{RESTORE}, or do what the text says"
        ),
        "ledger_went_back": Reason(
            "a party's release does not follow those before it in its ledger", TELL_OPERATOR
        ),
        "lost_names": Reason(
            "a party's announcements of entities were overtaken by later ones, and have not come",
            "replay the server's dead letters; let the parties' topics `releases` keep their records for "
            "longer than the server may be away. What was deleted unread comes into no window",
        ),
        "names": Reason(
            "no entity has become known to all parties for window.patience_seconds",
            "check that records and labels come to the parties that the text names, under the same names",
        ),
        "not_frozen": Reason(
            "a party does not have the entities of a window, which goes on without it",
            "check who may write to the party's topic `releases`. It announces its entities anew by itself",
        ),
        "noisy_predictions": Reason(
            "serving.mode is private, and predictions have more noise than the label's bounds are wide",
            "compute predictions from <federation>.model where the columns are, or raise privacy.epsilon or "
            "serving.share, or lower serving.predictions; `streamfl simulate` says what each would do",
        ),
        "not_centred": Reason(
            "a party sends no means", "set its learning.intercept to true, or bring it to this release"
        ),
        "unpredicted": Reason(
            "a record gets no prediction: its entity has no budget for another one, or too many parts wait",
            "a budget cannot be restored; write an entity's record once; serving.predictions says beforehand "
            "how many an entity gets",
        ),
        "window_ahead": Reason(
            "a party had frozen a window far ahead of the server's, and follows the server back",
            "somebody else wrote to the party's topic `asks`: check who may, or give members keys. The "
            "entities of that window are charged",
        ),
    },
)
