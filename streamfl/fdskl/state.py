"""What a worker of FDSKL remembers of a partition: the keys of its changelog."""

from __future__ import annotations

from streamfl.records.pending_headers import HEADERS
from streamfl.state.table import StateTable

__all__ = [
    "ALPHAS",
    "ANNOUNCED",
    "COLUMNS",
    "ENTITY",
    "FORECAST",
    "HEADERS",
    "LABELLED",
    "LABELS",
    "MODEL",
    "OUTPUTS",
    "PEER",
    "RESCALED",
    "SECRET",
    "SENT_REVISIONS",
    "STATE",
    "TURNS",
]

STATE = StateTable()

# ---- at every party

COLUMNS = STATE.row(
    "columns",
    "Moments of the party's columns, which give their scale, and whether they are frozen.",
    "With each sample, until the moments are frozen.",
)
ENTITY = STATE.row(
    "entity/NAME",
    "An entity's own columns, whether the party has answered a round with it, and for how many features.",
    "When its columns come, and when others are answered for it.",
    "`alignment.limit`. Beyond it the oldest is forgotten. Any is forgotten `alignment.expiry_seconds` after "
    "its columns came.",
)
SECRET = STATE.row(
    "secret",
    "The secret that the party's frequencies are drawn from; with `aggregation.secret_file` only its digest.",
    "Once, before the first answer.",
)
RESCALED = STATE.row(
    "rescaled",
    "That private features of a second bandwidth were drawn.",
    "Once, with the first round that asks for them.",
)
PEER = STATE.row(
    "peer/NUMBER",
    "The latest lives of another party with their public keys, and which of its messages were received.",
    "With each announcement or revision of that party.",
    "One for each other party.",
)
ANNOUNCED = STATE.row(
    "told",
    "Which life of this party was announced, how often, and what its answers have told.",
    "With each announcement, and with the first answers.",
)
SENT_REVISIONS = STATE.row("life", "The numbers of the last revision that was sent.", "With each revision.")

# ---- at the party that predicts

STATE.add(HEADERS)
FORECAST = STATE.row(
    "forecast/NAME",
    "An entity that waits for its prediction or for its label, and its last prediction.",
    "When its columns or label come, and when it is predicted. Deleted once it is learnt from.",
    "`alignment.limit`. Beyond it the oldest is forgotten. Any is forgotten `alignment.expiry_seconds` after "
    "its last change.",
)

# ---- at active parties

LABELLED = STATE.row(
    "labelled/NAME",
    "The label of an entity that is learnt from.",
    "When its label has come and the entity may be learnt from.",
    "The larger of `learning.window` and `learning.block_instances`. Beyond it the oldest is forgotten.",
)
OUTPUTS = STATE.row(
    "outputs/NUMBER",
    "The model's outputs for 512 labelled entities.",
    "In each step that changes one of them.",
    "As many as hold the labelled entities.",
)
LABELS = STATE.row(
    "labels",
    "How many labels came, how many are not learnt from yet, and how good predictions were.",
    "With each label, and with each iteration.",
)
MODEL = STATE.row(
    "model",
    "The model without its coefficients: version, bandwidth, and which features are kept.",
    "With each iteration, and when the bandwidth is found.",
)
ALPHAS = STATE.row(
    "alphas/NUMBER",
    "The coefficients of a block of features.",
    "With each iteration that changes them.",
    "`learning.features_limit` divided by `learning.block_features`. Beyond it the oldest block is dropped.",
)
TURNS = STATE.row(
    "turns",
    "Whose turn it is to learn. Only with several active parties.",
    "With each message in the log of turns.",
)
