"""What the members of quasi-Newton remember of their partition: the keys of their changelogs."""

from __future__ import annotations

from streamfl.records.pending_headers import HEADERS
from streamfl.roles.partitioned_role import FRAGMENTS
from streamfl.state.table import StateTable
from streamfl.state.value_fragments import AS_MANY_FRAGMENTS

__all__ = [
    "ANSWERED",
    "ASKED",
    "BATCH",
    "CALIBRATION",
    "COMMON",
    "COORDINATOR_STATE",
    "DESCENT",
    "DOTS",
    "EARLY",
    "EARLY_BEGIN",
    "ENTITY",
    "GONE",
    "GUEST_STATE",
    "HOST_OUTPUTS",
    "HOST_STATE",
    "INPUTS",
    "LEAST",
    "MODEL",
    "NAMES",
    "OFFERED_NAMES",
    "ORDER",
    "PAIR",
    "PREPARATION",
    "PRODUCTS",
    "PROGRESS",
    "RUN",
    "SCORE",
    "SCORING",
    "SESSION",
    "SIGNS",
    "SINCE",
    "SOUGHT",
    "TRAINED",
    "VECTORS",
]

_PER_HOST = "For each host, one for each half megabyte of the value."
_ENTITIES = "As many as entities."

# ---- at the coordinator

COORDINATOR_STATE = StateTable([FRAGMENTS])
RUN = COORDINATOR_STATE.row(
    "run",
    "The present training: its round, who has joined, which uploads were decrypted, and the losses of the "
    "epoch.",
    "With each message that is taken.",
)
DESCENT = COORDINATOR_STATE.row(
    "descent",
    "The inner products of the curvature pairs, and what the descent has come to.",
    "With each message that is taken.",
)

# ---- at guest and hosts

_PARTY = StateTable([FRAGMENTS])
ENTITY = _PARTY.row(
    "entity/NAME",
    "An entity's own columns, and at the guest its label.",
    "When its columns or its label come.",
    "`alignment.limit`. Beyond it the oldest is forgotten. Any is forgotten `alignment.expiry_seconds` after "
    "its last change.",
)
SINCE = _PARTY.row(
    "since",
    "What has come since the latest training began, and how many trainings in a row have failed.",
    "When a training begins or ends, and with each entity that becomes complete.",
)
PROGRESS = _PARTY.row("progress", "The party's place in the training.", "With each step of a training.")
EARLY_BEGIN = _PARTY.row(
    "begin",
    "The next training, if the coordinator began it before the party was ready.",
    "When that happens. Deleted when the party begins it.",
)
NAMES = _PARTY.row(
    "names/NUMBER",
    "The names of the new entities that a training may take.",
    "When it begins. Deleted when they are in batches.",
    AS_MANY_FRAGMENTS,
)
INPUTS = _PARTY.row(
    "inputs/NUMBER", "The columns of these entities.", "As `names/NUMBER`.", AS_MANY_FRAGMENTS
)
SIGNS = _PARTY.row(
    "signs/NUMBER",
    "The labels of these entities. Only at the guest.",
    "As `names/NUMBER`.",
    AS_MANY_FRAGMENTS,
)
BATCH = _PARTY.row(
    "batch/NUMBER/PART/NUMBER",
    "The names, columns (`inputs`) and labels (`signs`) of a batch that is learnt from.",
    "When a training begins to learn from it.",
    "`alignment.limit` divided by `learning.batch`. Beyond it the oldest batch is forgotten.",
)
GONE = _PARTY.row(
    "gone/NUMBER",
    "Digests of the names in a batch that was forgotten.",
    "When the batch is forgotten.",
    "All batches together, those that are kept included, have at most 10,000,000 entities.",
)
PREPARATION = _PARTY.row(
    "preparation/NUMBER",
    "The transformation of the columns.",
    "Once, when the first training has reached its rounds.",
    AS_MANY_FRAGMENTS,
)
VECTORS = _PARTY.row(
    "vectors",
    "The weights, and the sums of weights of which the model is the mean.",
    "With each step of a training.",
)
PAIR = _PARTY.row(
    "pair/NUMBER",
    "A curvature pair.",
    "When the coordinator has accepted it.",
    "`learning.memory`. A newer one displaces the oldest.",
)
MODEL = _PARTY.row("model", "The mean of the weights over the latest epoch.", "With each epoch.")
TRAINED = _PARTY.row(
    "trained/NUMBER",
    "The party's part of the latest model, for scoring.",
    "When a training has ended with a model.",
    AS_MANY_FRAGMENTS,
)

# ---- at the guest

GUEST_STATE = StateTable([*_PARTY.rows, HEADERS])
COMMON = GUEST_STATE.row(
    "common/HOST/NUMBER",
    "Which of the host's points are those of own entities.",
    "With each alignment.",
    _PER_HOST,
)
LEAST = GUEST_STATE.row(
    "least/HOST/NUMBER",
    "The fewest rows that the host takes for a batch.",
    "With each alignment.",
    "One for each host.",
)
HOST_OUTPUTS = GUEST_STATE.row(
    "outputs/HOST/NUMBER", "The host's vector of a round.", "When it comes.", _PER_HOST
)
DOTS = GUEST_STATE.row(
    "dots/HOST/NUMBER", "The host's inner products of a round.", "When they come.", _PER_HOST
)
PRODUCTS = GUEST_STATE.row(
    "products/NUMBER",
    "The own inner products of a round.",
    "When they are computed. Deleted when those of all hosts have come.",
    AS_MANY_FRAGMENTS,
)
SESSION = GUEST_STATE.row(
    "session/HOST",
    "The guest's place in the questions about scores to the host.",
    "With each question and answer.",
    "One for each host.",
)
SOUGHT = GUEST_STATE.row(
    "sought/HOST/NUMBER",
    "The entities that the present question is about.",
    "With each question, and with the host's first answer. Deleted with its second.",
    _PER_HOST,
)
SCORE = GUEST_STATE.row(
    "score/NAME",
    "The hosts' parts of an entity's output, the output, and what of it was published.",
    "When a host's part comes, and when a prediction is published. Deleted with the entity.",
    _ENTITIES,
)
CALIBRATION = GUEST_STATE.row(
    "calibration",
    "Intercept and slope that turn an output into a probability.",
    "Once for each model, when it is calibrated.",
)

# ---- at a host

HOST_STATE = StateTable(_PARTY.rows)
ASKED = HOST_STATE.row(
    "asked/NUMBER",
    "The guest's points that came before the training began.",
    "When they come.",
    AS_MANY_FRAGMENTS,
)
ORDER = HOST_STATE.row(
    "order/NUMBER",
    "The names of own entities, in the order of the points that the guest has.",
    "When the guest's points are answered.",
    AS_MANY_FRAGMENTS,
)
SCORING = HOST_STATE.row(
    "scoring",
    "The host's place in the guest's questions about scores, and for how many models it has answered.",
    "With each question and choice.",
)
OFFERED_NAMES = HOST_STATE.row(
    "offered/NUMBER",
    "The names of own entities, in the order of the points of the present question.",
    "When the question is answered. Deleted with the guest's choice.",
    AS_MANY_FRAGMENTS,
)
EARLY = HOST_STATE.row(
    "early/NUMBER",
    "A question about a model that this host does not have yet.",
    "When it comes. Deleted when it is answered.",
    AS_MANY_FRAGMENTS,
)
ANSWERED = HOST_STATE.row(
    "answered/NAME",
    "The last model for which the host sent its part of an entity's output.",
    "When it is sent. Deleted with the entity.",
    _ENTITIES,
)
