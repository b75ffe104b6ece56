"""What the members of DP Frank-Wolfe remember: the keys of their changelogs."""

from __future__ import annotations

from streamfl.records.pending_headers import HEADERS
from streamfl.roles.partitioned_role import FRAGMENTS
from streamfl.state.table import StateTable
from streamfl.state.value_fragments import AS_MANY_FRAGMENTS

__all__ = [
    "ANEW",
    "ANNOUNCEMENTS",
    "BEFORE",
    "CENTRED",
    "CHAIN",
    "CHAIN_GAPS",
    "CHOSEN",
    "DUE",
    "ENTITY",
    "EXACT",
    "INTERCEPT",
    "LATEST",
    "LEDGER_STATE",
    "MANIFEST",
    "MEANS",
    "MODEL",
    "NAME",
    "NUMBERED",
    "PARTIAL",
    "PARTIALS",
    "PARTY_CHAIN",
    "PARTY_FIT",
    "PARTY_SELECTION",
    "PARTY_STATE",
    "PREDICTIONS",
    "PRESENCE",
    "PRODUCTS",
    "PROGRESS",
    "RUN",
    "SAID_AGAIN",
    "SERVER_FIT",
    "SERVER_SELECTION",
    "SERVER_STATE",
    "SHOWN",
    "SINCE",
    "SPENT",
    "TERMS",
    "TIMES",
    "VERTICES",
    "WEIGHTS",
    "WHOLE",
    "WINDOW",
    "WINDOW_NUMBER",
]

_EACH_PARTY = "One for each party."
_EACH_PARTY_FRAGMENTED = "As many for each party as hold the value, half a megabyte each."

# ---- a party's ledger, in a changelog of its own

LEDGER_STATE = StateTable()
SPENT = LEDGER_STATE.row(
    "spent/ENTITY",
    "Ledger: what was released of an entity.",
    "When a window with the entity is frozen, and with each prediction with noise.",
    "`privacy.ledger_limit`. Beyond it no other entity takes part.",
)
CHAIN = LEDGER_STATE.row(
    "chain/LANE",
    "Ledger: the latest release for fits, or for predictions.",
    "With each release.",
    "One for each.",
)
LATEST = LEDGER_STATE.row(
    "latest/FEDERATION",
    "Ledger: how far a federation's fits have come.",
    "With each release for a fit.",
    "One for each federation that has learnt from the data.",
)
TERMS = LEDGER_STATE.row("terms", "Ledger: the promise to the entities.", "Once, with the first window.")
EXACT = LEDGER_STATE.row(
    "exact", "Ledger: the federation that sent predictions without noise.", "Once, before the first of them."
)
WHOLE = LEDGER_STATE.row(
    "whole", "Ledger: a digest of all of it, and the number of its entities.", "With each change of it."
)

# ---- at a party

PARTY_STATE = StateTable([FRAGMENTS, *LEDGER_STATE.rows, HEADERS])
ENTITY = PARTY_STATE.row(
    "entity/NAME",
    "The columns and the label of an entity that waits for a window, and the number it was announced under.",
    "When its columns or its label come, and when it is announced. Deleted when a window is frozen with it.",
    "`window.limit`. Beyond it the oldest that lacks columns or a label is forgotten.",
)
NUMBERED = PARTY_STATE.row("numbered", "How many entities were announced.", "With each announcement.")
SAID_AGAIN = PARTY_STATE.row(
    "again",
    "How far the party has come with announcing anew what waits.",
    "When the server asks for it, and with each part of it.",
)
WINDOW = PARTY_STATE.row(
    "window/NUMBER",
    "The rows of the window.",
    "When it is frozen. Deleted when its fit has ended.",
    AS_MANY_FRAGMENTS,
)
PROGRESS = PARTY_STATE.row("progress", "The party's place in the fit.", "With each message that is taken.")
WINDOW_NUMBER = PARTY_STATE.row(
    "fit-window", "The window's number.", "When it is frozen. Deleted when its fit has ended."
)
CENTRED = PARTY_STATE.row("fit-centred", "Whether the window's means were released.", "As `fit-window`.")
PARTY_FIT = PARTY_STATE.row(
    "fit",
    "What was released of the window, with Frank-Wolfe.",
    "With each answer. Deleted when the fit has ended.",
)
PARTY_SELECTION = PARTY_STATE.row(
    "selection", "What was released of the window, with another estimator.", "As `fit`."
)
MODEL = PARTY_STATE.row(
    "model/NUMBER", "The party's own weights of the latest fit.", "When a fit has ended.", AS_MANY_FRAGMENTS
)
BEFORE = PARTY_STATE.row(
    "before/NUMBER",
    "The party's own weights of the fit before the latest. Only where predictions have no noise.",
    "When a fit has ended.",
    AS_MANY_FRAGMENTS,
)
DUE = PARTY_STATE.row(
    "prediction/NUMBER",
    "A part of a prediction that is to be sent.",
    "When the entity's record comes. Deleted when it is sent.",
    "`window.limit`. Beyond it no other record is predicted.",
)
PREDICTIONS = PARTY_STATE.row(
    "predictions", "How many parts of predictions were computed.", "With each of them."
)
TIMES = PARTY_STATE.row(
    "predicted/ENTITY",
    "How often an entity was predicted with noise.",
    "With each of these predictions.",
    "As many as entities in the ledger.",
)

# ---- at the server

SERVER_STATE = StateTable([FRAGMENTS])
RUN = SERVER_STATE.row(
    "run", "The window's number, and how far it has come.", "When a window is made, frozen or fitted."
)
NAME = SERVER_STATE.row(
    "name/ENTITY",
    "The numbers that the parties have announced an entity under.",
    "With each announcement of it. Deleted when a window takes it.",
    "`window.limit` for each party. Beyond it a name is left out.",
)
ANNOUNCEMENTS = SERVER_STATE.row(
    "announcements/PARTY",
    "Which announcements of a party have come: the latest number, and the gaps before it.",
    "With each of them.",
    _EACH_PARTY,
)
ANEW = SERVER_STATE.row(
    "anew/PARTY",
    "Whether what a party has announced is doubtful, and whether it was asked to announce anew.",
    "When announcements of the party are doubtful, when it is asked, and when it answers.",
    _EACH_PARTY,
)
MANIFEST = SERVER_STATE.row(
    "manifest/NUMBER",
    "The entities of a window.",
    "When it is made. Deleted when it is frozen.",
    AS_MANY_FRAGMENTS,
)
PRESENCE = SERVER_STATE.row(
    "presence/PARTY",
    "What a party owes, whether it is absent, and a digest of its latest answer.",
    "With each message to or from the party, and when it has not answered in time.",
    _EACH_PARTY,
)
SINCE = SERVER_STATE.row("since", "When the parties were asked last.", "With each message to a party.")
PARTY_CHAIN = SERVER_STATE.row(
    "chain/PARTY", "The latest release of a party for a fit.", "With each of them.", _EACH_PARTY
)
CHAIN_GAPS = SERVER_STATE.row(
    "chain-gaps/PARTY",
    "Which numbers of a party's releases have not come. Only where members have no keys.",
    "When a release does not follow the one before, and with each after that.",
    _EACH_PARTY,
)
MEANS = SERVER_STATE.row(
    "means/PARTY/NUMBER",
    "The means that a party has released.",
    "When they come. Deleted with the next window.",
    _EACH_PARTY_FRAGMENTED,
)
WEIGHTS = SERVER_STATE.row(
    "weights/NUMBER",
    "The weights of the present or latest fit.",
    "With each iteration that changes them.",
    AS_MANY_FRAGMENTS,
)
SERVER_FIT = SERVER_STATE.row(
    "fit", "The iteration, and how much was released, with Frank-Wolfe.", "With each answer and iteration."
)
VERTICES = SERVER_STATE.row(
    "vertices/PARTY",
    "What a party has chosen in the iteration.",
    "When it comes. Deleted with the iteration.",
    _EACH_PARTY,
)
SHOWN = SERVER_STATE.row(
    "shown/PARTY/COLUMN/NUMBER",
    "The sums of a column that a party has released.",
    "When they come. Deleted with the next window.",
    "As many for each column as hold the value, and as many columns as the public plan allows a party to "
    "show.",
)
SERVER_SELECTION = SERVER_STATE.row(
    "selection", "The step, and how much was released, with another estimator.", "With each answer and step."
)
CHOSEN = SERVER_STATE.row(
    "chosen/PARTY/NUMBER",
    "A party's choice of columns.",
    "When it comes. Deleted with the next window.",
    _EACH_PARTY_FRAGMENTED,
)
PRODUCTS = SERVER_STATE.row(
    "products/PARTY/NUMBER",
    "A party's products of columns.",
    "As `chosen/PARTY/NUMBER`.",
    _EACH_PARTY_FRAGMENTED,
)
PARTIALS = SERVER_STATE.row(
    "partials/PARTY",
    "Which parts of predictions have come of a party: the latest number, and the gaps before it.",
    "With each of them.",
    _EACH_PARTY,
)
PARTIAL = SERVER_STATE.row(
    "partial/MODEL/ENTITY",
    "The parts of an entity's prediction that have come.",
    "With each of them. Deleted when all have come.",
    "`window.limit`. Beyond it the oldest is forgotten. Any is forgotten a day after its latest part came.",
)
INTERCEPT = SERVER_STATE.row(
    "intercept/VERSION", "The intercept of a model.", "When a fit has ended.", "4 of the latest models."
)
