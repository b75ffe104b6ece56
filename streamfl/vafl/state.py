"""What coordinator and parties of VAFL remember of a partition: the keys of their changelogs."""

from __future__ import annotations

from streamfl.state.table import StateRow, StateTable

__all__ = [
    "ALIGNED_ENTITY",
    "ANSWERED",
    "ARRAY",
    "COORDINATOR_STATE",
    "ENTITY",
    "HEAD_COUNTERS",
    "HEARD_PARTY",
    "PARTY_STATE",
    "SPENT",
    "TASK",
    "WAITING",
]

ARRAY = StateRow(
    "array/NAME/NUMBER",
    "The parameters, the optimiser's arrays, at a party the moments of its inputs, and at the coordinator "
    "the gathered gradient.",
    "In each step that changes them; the moments with each sample.",
    "As many as hold the array, half a megabyte each.",
)
SPENT = StateRow(
    "spent/ENTITY",
    "What was released of an entity, or of its label.",
    "With each release with noise.",
    "`privacy.ledger_limit`. Beyond it no other entity takes part.",
)

# ---- at a party

PARTY_STATE = StateTable([ARRAY, SPENT])
TASK = PARTY_STATE.row(
    "task",
    "The epoch, the numbers of the latest embedding and step, and what the parameters have learnt from.",
    "With each embedding, gradient and step.",
)
ENTITY = PARTY_STATE.row(
    "entity/NAME",
    "An entity that waits for its gradient, with its features and the number of its embedding.",
    "When its embedding is sent. Deleted when its gradient comes.",
    "`alignment.limit`. Beyond it the oldest is forgotten. Any is forgotten `alignment.expiry_seconds` after "
    "its embedding.",
)
WAITING = PARTY_STATE.row(
    "waiting/NUMBER",
    "A sample that waits until fewer entities are on their way.",
    "When it comes. Deleted when its embedding is sent.",
    "10,000 and one poll more, fewer with a backlog. Beyond it the partition's samples are not read.",
)
ANSWERED = PARTY_STATE.row(
    "answered/NUMBER",
    "A gradient that waits for the next step.",
    "When it comes. Deleted with the step.",
    "`learning.batch_size`.",
)

# ---- at the coordinator

COORDINATOR_STATE = StateTable([ARRAY, SPENT])
HEAD_COUNTERS = COORDINATOR_STATE.row(
    "task",
    "How many steps were taken, and how many gradients wait for the next.",
    "With each gradient that is gathered.",
)
HEARD_PARTY = COORDINATOR_STATE.row(
    "party/NUMBER",
    "Which of a party's embeddings have come, and their mean.",
    "With each of its embeddings, and when the coordinator has waited for it in vain.",
    "One for each party.",
)
ALIGNED_ENTITY = COORDINATOR_STATE.row(
    "entity/NAME",
    "An entity's embeddings, label and prediction.",
    "When an embedding or its label comes, and when it is predicted or learnt from.",
    "`alignment.limit`. Beyond it the oldest is forgotten. Any is forgotten `alignment.expiry_seconds` after "
    "its last message.",
)
