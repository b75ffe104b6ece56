"""What the roles of POF-MKL remember of a partition: the keys of their changelogs.

In ``part/…``, ``join/…`` and ``challenger/…`` the length of the client's name comes first, in two bytes, and
no slash comes behind the name. In ``waiting/…`` the number has eight bytes, and the name follows at once.
"""

from __future__ import annotations

from streamfl.encoding.changelog_checks import check_name
from streamfl.state.table import StateTable, first_name

__all__ = [
    "BOOK",
    "CHALLENGER",
    "CLIENT_PART",
    "CLIENT_RECORD",
    "CLIENT_STATE",
    "COPY",
    "INPUT_MEANS",
    "JOIN",
    "MEMBER",
    "PENDING",
    "ROUND",
    "SERVER_STATE",
    "SILENCE",
    "STEP",
    "WAITING",
    "WAITING_LIMIT",
]

# Samples of a partition that may wait for the model, or labels. It bounds the memory, and is not a time: they
# wait until they are learnt. MOST_LABELS of the reading order is another fact: it bounds the labels that are
# read before their samples. Either may change alone.
WAITING_LIMIT = 10_000
_EACH_CLIENT = "One for each client."
_EACH_KERNEL = "One for each kernel of the shard."

# ---- at the clients' worker

CLIENT_STATE = StateTable()
CLIENT_RECORD = CLIENT_STATE.row(
    "client/NAME",
    "A client's place in its updates, its byte budget and its open upload; with `paper` its weights and sums "
    "too.",
    "With each of its samples and labels, and when its upload is sent.",
    "`federation.clients` in all partitions of a worker. Beyond it the client that was idle for longest is "
    "forgotten, if that is `federation.client_expiry_seconds` or more. Otherwise the new client is refused.",
    client=check_name,
)
CLIENT_PART = CLIENT_STATE.row(
    "part/CLIENT/PART",
    "With the preset `default`: a snapshot of the client's running numbers, what it learnt since, its latest "
    "samples, the models of `experts.river`, and the steps that it takes without a server.",
    "With each sample and label; a snapshot every 64 of these.",
    "For each client a snapshot, 192 samples and labels since, 256 latest samples, and one for each of "
    "`experts.river`.",
    client=first_name,
)
INPUT_MEANS = CLIENT_STATE.row(
    "means/NAME",
    "The means, or the last values, that fill in a client's missing inputs.",
    'With each of its samples, if an input has missing = "mean" or "last".',
    _EACH_CLIENT,
    client=check_name,
)
WAITING = CLIENT_STATE.row(
    "waiting/NUMBER/CLIENT",
    "A sample that waits for the model or for the byte budget.",
    "When it cannot be learnt in the step that brought it. Deleted when it is learnt.",
    f"{WAITING_LIMIT:,} and one poll more. Beyond it the worker reads no further.",
    client=lambda rest: check_name(rest[8:]),
)
CHALLENGER = CLIENT_STATE.row(
    "challenger/CLIENT/MODEL",
    "The state of a model of `challengers.models` that can be stored.",
    "After every 64 labels that it has learnt. Deleted when it fails, or is no longer among the challengers.",
    "One for each client and model.",
    client=first_name,
)
JOIN = CLIENT_STATE.row(
    "join/CLIENT/SAMPLE",
    "With `[labels]`: a predicted sample, its label, both, or that they were learnt.",
    "When one of them comes, and when they are learnt.",
    "`labels.limit` for each client. Beyond it the client's oldest is forgotten. Any is forgotten "
    f"`labels.expiry_seconds` after its last change. More may wait for the model: {WAITING_LIMIT:,} and one "
    "poll of samples with their labels.",
    client=first_name,
)
SILENCE = CLIENT_STATE.row(
    "silence",
    "Since when the server owes an answer, and whether clients go on without it.",
    "With the first update or waiting label that has no answer, when patience is spent, and with the answer.",
)

# ---- at the server, beside the model's own topic

SERVER_STATE = StateTable()
MEMBER = SERVER_STATE.row(
    "client/NAME",
    "Which of a client's updates have come, and whether rounds wait for the client.",
    "With each of its updates, and when a round that waited for it is closed.",
    "`federation.clients`. Beyond it one that never sent a kernel is forgotten, or the one that was idle for "
    "longest, if that is `federation.client_expiry_seconds` or more. Otherwise the new client is refused.",
    client=check_name,
)
PENDING = SERVER_STATE.row(
    "pending/NAME",
    "An update of the open round.",
    "When it comes. Deleted when the round is closed.",
    "`federation.clients`.",
    client=check_name,
)
ROUND = SERVER_STATE.row(
    "round",
    "When the open round began, and how many inputs a sample has.",
    "At the start, and when a round begins or is closed.",
)
STEP = SERVER_STATE.row(
    "step/KIND/KERNEL/NUMBER",
    "What the optimiser remembers of a kernel: with `least-squares` a snapshot, and the target rows since; "
    "with `adagrad` sums.",
    "With each update of the kernel; a snapshot after every 256 rows.",
    "For each kernel a snapshot and 256 rows, or one record of sums.",
)
BOOK = SERVER_STATE.row(
    "published",
    "The version of the model, the updates in it, and a digest of each kernel as it was published last.",
    "With each version.",
)
COPY = SERVER_STATE.row(
    "copy/KERNEL",
    "A kernel's parameters, should somebody overwrite them in the model's topic.",
    "With the kernel's first version, and later with every fourth version one kernel in turn.",
    _EACH_KERNEL,
)
