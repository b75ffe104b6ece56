"""The alerts for POF-MKL federations."""

from streamfl.monitoring.alerts import MEMBER, Alert, increased, member_sum, stopped

__all__ = ["ALERTS"]

OF_FEDERATION = "sum by (system, federation)"
# Regret per sample, in squares of the label's range, that needs no action: an error of 3 % of the range.
NOTHING = 0.001


def before(offset: str = "") -> str:
    """The query for regret per sample over the clients' whole life, ``offset`` ago."""
    then = f" offset {offset}" if offset else ""
    return (
        f"{OF_FEDERATION} (streamfl_regret{{system=\"pofmkl\"}}{then})"
        f" / {OF_FEDERATION} (streamfl_lifetime_labels{{system=\"pofmkl\"}}{then})"
    )


REGRET = before()
ERROR = (
    f"{OF_FEDERATION} (rate(streamfl_squared_error_sum_total{{system=\"pofmkl\"}}[1h]))"
    f" / {OF_FEDERATION} (rate(streamfl_labels_total{{system=\"pofmkl\"}}[1h]))"
)
RUNNING_MEAN = (
    f"{OF_FEDERATION} (rate(streamfl_challenger_squared_error_sum_total{{model=\"running-mean\"}}[1h]))"
    f" / {OF_FEDERATION} (rate(streamfl_challenger_labels_total{{model=\"running-mean\"}}[1h]))"
)

ALERTS = (
    Alert(
        "StreamflErrorAboveRunningMean",
        f"({ERROR}) > ({RUNNING_MEAN})",
        60,
        "warning",
        "The predictions of {{ $labels.federation }} are worse than each client's running mean.",
        "Nothing of use is predicted at present. It is told only where [challengers] has running-mean.",
        "Where labels have a topic of their own there are no challengers, and this is never told. "
        "Look whether inputs changed: a sensor that stands still, another unit, a field that is missing. Look at "
        "samples.label_range and "
        "samples.input_norm, and at [drift].",
    ),
    Alert(
        "StreamflRegretRises",
        f"({REGRET}) > {NOTHING} and ({REGRET}) > 1.1 * ({before('1d')})",
        60,
        "warning",
        "The regret of {{ $labels.federation }} has risen by a tenth within a day.",
        "What is learnt falls behind the best single kernel of each client. It should fall as samples come.",
        "Compare with the error's panel. If the error rises too, the stream has changed. If it does not, one kernel has "
        "become much better "
        "than the others, and the weights follow within hours.",
    ),
    Alert(
        "StreamflRegretStays",
        f"({REGRET}) > {10 * NOTHING} and ({REGRET}) >= ({before('7d')})",
        60,
        "warning",
        "The regret of {{ $labels.federation }} is high, and no lower than a week ago.",
        "The best single kernel of each client would predict much better than what is learnt, and that does not get less.",
        "Look at the panel of kernels' weights: if none grows, leave learning.learning_rate out, or "
        "raise it. If updates are skipped, raise uplink.budget_bytes_per_second.",
    ),
    Alert(
        "StreamflBudgetExhausted",
        f"{increased('skipped_updates_total', 60)} > 0.5 * {increased('updates_total', 60)}",
        60,
        "warning",
        "{{ $labels.group }} has not the bytes for its updates.",
        "The model learns less than it could: more than one update in three is not made.",
        "Raise uplink.budget_bytes_per_second, or lower uplink's kernels an update, so that each update is smaller.",
    ),
    Alert(
        "StreamflBudgetNearlySpent",
        f"{increased('update_bytes_total', 60)} > 0.8 * {increased('update_budget_bytes_total', 60)}"
        f" and {increased('update_budget_bytes_total', 60)} > 0",
        30,
        "warning",
        "{{ $labels.group }} sends four fifths of the bytes that it may.",
        "Soon updates will be left out, and what they would have told is learnt by nobody else.",
        "Raise uplink.budget_bytes_per_second, or send fewer kernels an update. If samples come faster than they used to, find out "
        "why.",
    ),
    Alert(
        "StreamflClientSilent",
        f"{member_sum('streamfl_silent_clients')} > 0",
        5,
        "warning",
        "Clients of {{ $labels.group }} are silent for longer than is usual for them.",
        "Nothing is predicted for them, and the federation learns nothing from them. A client is silent after three times the "
        "longest pause that is usual for it, a minute at least: one that speaks once a day after three days.",
        "streamfl inspect CONFIG marks the silent ones of a client worker. Look at what writes their samples; at a server, which "
        "counts updates, at their site's workers. One that never comes back: streamfl forget CONFIG --client NAME.",
    ),
    Alert(
        "StreamflClientUnlabelled",
        f"{member_sum('streamfl_unlabelled_clients')} > 0",
        5,
        "warning",
        "Clients of {{ $labels.group }} send samples, and no labels for longer than is usual for them.",
        "They are predicted, and learn nothing any more. What is usual is measured as for StreamflClientSilent.",
        "Look at what writes their labels, and at the dead letters. streamfl inspect CONFIG shows each client's number of labels.",
    ),
    Alert(
        "StreamflClientsSilenced",
        f"{increased('labels_total', 60)} > 0 and {increased('updates_total', 60)} == 0",
        60,
        "warning",
        "Clients of {{ $labels.group }} learn and send nothing.",
        "The federation goes on without them: what they see is in nobody's model but their own.",
        "Look at streamfl_skipped_updates_total: with reason budget not one update fits into uplink.budget_bytes_per_second. "
        "Look at the log for refused writes.",
    ),
    Alert(
        "StreamflClientMissing",
        f"{increased('timed_out_rounds_total', 15)} > 0",
        20,
        "warning",
        "Rounds of {{ $labels.federation }} end without every client.",
        "The server waits for somebody in each round until learning.round_timeout_seconds are over, and goes on without them. It "
        "is told only with learning.staleness = \"lockstep\"; otherwise nobody is waited for.",
        "Look whether all client workers run, and whether every client still sends samples: streamfl inspect CONFIG lists those "
        "that the server knows. One that never comes back: streamfl forget CONFIG --client NAME.",
    ),
    Alert(
        "StreamflClientsWait",
        f"sum by ({MEMBER}) (streamfl_waiting_clients) > 0 and {increased('labels_total', 15)} == 0",
        15,
        "warning",
        "Clients of {{ $labels.group }} wait for the model, and none learns.",
        "Their samples are kept. They are predicted once the model goes on.",
        "Look whether the server runs and is ready, and whether all clients that learning.staleness waits for send updates.",
    ),
    Alert(
        "StreamflClientsAlone",
        f"max by ({MEMBER}) (streamfl_alone) > 0",
        5,
        "warning",
        "Clients of {{ $labels.group }} learn alone: no new version of the model comes.",
        "Each is about as good as a client without a federation. Their updates wait in their topic for the server.",
        "Start the pofmkl-server, or look at what its log says of these clients' updates. It is over with the next version.",
    ),
    Alert(
        "StreamflPredictedWithoutModel",
        f"{increased('version_zero_predictions_total', 60)} > 0.5 * {increased('predictions_total', 60)}",
        15,
        "warning",
        "{{ $labels.group }} predicts without a model.",
        "More than half of the last hour's predictions were made with version 0 of the model: no server has published one. Each "
        "client is about as good as one without a federation.",
        "Start the pofmkl-server. If it runs: look whether federation.name and bus.url are the same at both, and at what its "
        "log says of these clients' updates.",
    ),
    Alert(
        "StreamflModelStands",
        f"{increased('updates_total', 15)} > 0 and max by ({MEMBER}) (changes(streamfl_model_version[15m])) == 0",
        5,
        "critical",
        "{{ $labels.group }} sends updates, and the version of its model stands still.",
        "Nothing that is learnt reaches the clients: the server is away, refuses the updates, or its model does not come.",
        "Look whether the pofmkl-server runs and is ready, at its dead letters and streamfl_ignored_updates_total, and at "
        "streamfl_table_rejections_total of the clients.",
    ),
    Alert(
        "StreamflUpdatesGone",
        stopped("updates_applied_total"),
        0,
        "critical",
        "The server of {{ $labels.federation }} applies no updates any more.",
        "The model stands still. It is told after three of the times in which updates usually came: a quarter of an hour, three "
        "hours or three days.",
        "If updates lie in the topic, look at the server's log and dead letters. If none do, look at the clients: their labels, "
        "streamfl_skipped_updates_total, and whether their workers run.",
    ),
    Alert(
        "StreamflUpdatesIgnored",
        f"{increased('ignored_updates_total', 60)}"
        f" > 0.2 * ({increased('ignored_updates_total', 60)} + {increased('updates_applied_total', 60)})",
        15,
        "warning",
        "The server of {{ $labels.federation }} ignores one update in five.",
        "What these clients learnt is in nobody's model but their own.",
        "By reason: late means a client that is too slow for lockstep, or in another mode than the server; duplicate that two "
        "speak for a client, or a site that was put back; empty that a client has no bytes for a kernel. The log names clients.",
    ),
    Alert(
        "StreamflSuspectModel",
        f"{increased('model_repairs_total', 60)} > 0 or {increased('unsigned_parameters_total', 60)} > 0"
        f" or {increased('superseded_updates_total', 60)} > 0",
        0,
        "critical",
        "Somebody writes to the topics of {{ $labels.federation }} who should not.",
        "The server has repaired what it found, so the model is what it published. Two processes speak for one client, or "
        "a stranger writes.",
        "Look at the rights on the topics of updates and of the model, and at the log of the worker that counted it. Give "
        "members keys.",
    ),
    Alert(
        "StreamflStaleUpdates",
        # The gauge shows one update, so this is the mean over the scraped ones.
        f"max by ({MEMBER}) (avg_over_time(streamfl_staleness[15m])) > 1000",
        30,
        "warning",
        "Updates of {{ $labels.federation }} are made on a model that is more than 1000 versions old.",
        "Clients learn from what the model was long ago.",
        "Look at the clients' lag and at streamfl_model_version of each: one that stands still does not read the model's topic.",
    ),
)
