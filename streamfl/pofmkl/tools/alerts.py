"""The alerts for POF-MKL federations."""

from streamfl.monitoring.alerts import MEMBER, Alert, alert_when_stopped, increased, member_sum
from streamfl.pofmkl.metrics import (
    ChallengerMetrics,
    ClientMetrics,
    ErrorMetrics,
    ServerMetrics,
    UplinkMetrics,
)
from streamfl.runtime.metrics import WorkerMetrics

__all__ = ["ALERTS"]

POFMKL = 'system="pofmkl"'
OF_FEDERATION = "sum by (system, federation)"
# Regret per sample, in squares of the label's range, that needs no action: an error of 3 % of the range.
NEGLIGIBLE_REGRET = 0.001


def regret_per_sample(offset: str = "") -> str:
    """The query for regret per sample over the clients' whole life, ``offset`` ago."""
    then = f" offset {offset}" if offset else ""
    return (
        f"{OF_FEDERATION} ({ErrorMetrics.regret.where(POFMKL)}{then})"
        f" / {OF_FEDERATION} ({ErrorMetrics.lifetime_labels.where(POFMKL)}{then})"
    )


REGRET = regret_per_sample()
ERROR = (
    f"{OF_FEDERATION} (rate({ErrorMetrics.squared_error_sum.where(POFMKL)}[1h]))"
    f" / {OF_FEDERATION} (rate({ClientMetrics.labels.where(POFMKL)}[1h]))"
)
RUNNING_MEAN = (
    f"{OF_FEDERATION} "
    f"(rate({ChallengerMetrics.challenger_squared_error_sum.where(model='running-mean')}[1h])) / "
    f"{OF_FEDERATION} (rate({ChallengerMetrics.challenger_labels.where(model='running-mean')}[1h]))"
)

ALERTS = (
    Alert(
        "StreamflErrorAboveRunningMean",
        f"({ERROR}) > ({RUNNING_MEAN})",
        60,
        "warning",
        "The predictions of {{ $labels.federation }} are worse than each client's running mean.",
        "The predictions are of no use at present. The alert only works if [challengers] has running-mean.",
        "If labels have a topic of their own there are no challengers, and this alert never fires. Check "
        "whether inputs changed: a stuck sensor, another unit, a missing field. Check samples.label_range, "
        "samples.input_norm and [drift].",
    ),
    Alert(
        "StreamflRegretRises",
        f"({REGRET}) > {NEGLIGIBLE_REGRET} and ({REGRET}) > 1.1 * ({regret_per_sample('1d')})",
        60,
        "warning",
        "The regret of {{ $labels.federation }} has risen by a tenth within a day.",
        "The model falls behind the best single kernel of each client. The regret should fall as samples "
        "come.",
        "Compare it with the panel of the error. If the error rises too, the stream has changed. Otherwise "
        "one kernel has become much better than the others, and the weights follow within hours.",
    ),
    Alert(
        "StreamflRegretStays",
        f"({REGRET}) > {10 * NEGLIGIBLE_REGRET} and ({REGRET}) >= ({regret_per_sample('7d')})",
        60,
        "warning",
        "The regret of {{ $labels.federation }} is high, and no lower than a week ago.",
        "The best single kernel of each client would predict much better than the model, and the difference "
        "does not shrink.",
        "Look at the panel of kernels' weights: if none grows, leave learning.learning_rate out, or "
        "raise it. If updates are skipped, raise uplink.budget_bytes_per_second.",
    ),
    Alert(
        "StreamflBudgetExhausted",
        f"{increased(UplinkMetrics.skipped_updates, 60)} > 0.5 * {increased(UplinkMetrics.updates, 60)}",
        60,
        "warning",
        "{{ $labels.group }} does not have enough bytes for its updates.",
        "The model learns less than it could: more than one update in three is left out.",
        "Raise uplink.budget_bytes_per_second, or lower uplink's kernels an update, so that each update is "
        "smaller.",
    ),
    Alert(
        "StreamflBudgetNearlySpent",
        f"{increased(UplinkMetrics.update_bytes, 60)} > 0.8 * "
        f"{increased(UplinkMetrics.update_budget_bytes, 60)} and "
        f"{increased(UplinkMetrics.update_budget_bytes, 60)} > 0",
        30,
        "warning",
        "{{ $labels.group }} sends four fifths of its byte budget.",
        "Soon updates will be left out, and other clients will not learn from them.",
        "Raise uplink.budget_bytes_per_second, or send fewer kernels an update. If samples come faster than "
        "before, find out why.",
    ),
    Alert(
        "StreamflClientSilent",
        f"{member_sum(str(ClientMetrics.silent_clients))} > 0",
        5,
        "warning",
        "Clients of {{ $labels.group }} are silent for longer than usual.",
        "The federation learns nothing from them. A client worker tells this of clients without samples, for "
        "which nothing is predicted; a server of clients without updates, whose labels may have stopped "
        "while they are predicted. A client counts as silent after three times its usual longest pause, at "
        "least a minute: a client with one sample a day after three days.",
        "streamfl inspect CONFIG, with a client worker's settings, marks the clients whose samples or labels "
        "have stopped. Check the writer of these, and, if only the server tells it, the workers of the "
        "clients' site. If a client never comes back: streamfl forget CONFIG --client NAME.",
    ),
    Alert(
        "StreamflClientUnlabelled",
        f"{member_sum(str(ClientMetrics.unlabelled_clients))} > 0",
        5,
        "warning",
        "Clients of {{ $labels.group }} send samples, but for longer than usual no labels.",
        "They get predictions, but learn nothing any more. The usual pause is measured as for "
        "StreamflClientSilent.",
        "streamfl inspect CONFIG says since when no label of a client has come. Check the writer of their "
        "labels, and the dead letters.",
    ),
    Alert(
        "StreamflClientsSilenced",
        f"{increased(ClientMetrics.labels, 60)} > 0 and {increased(UplinkMetrics.updates, 60)} == 0",
        60,
        "warning",
        "Clients of {{ $labels.group }} learn but send nothing.",
        "The federation continues without them: their data only reach their own models.",
        f"Check {UplinkMetrics.skipped_updates}: with reason budget not even one update fits into "
        "uplink.budget_bytes_per_second. Check the log for refused writes.",
    ),
    Alert(
        "StreamflClientMissing",
        f"{increased(ServerMetrics.timed_out_rounds, 15)} > 0",
        20,
        "warning",
        "Rounds of {{ $labels.federation }} end without every client.",
        "In each round the server waits for some client until learning.round_timeout_seconds are over, and "
        "continues without it. "
        'The alert only fires with learning.staleness = "lockstep"; otherwise the server waits for nobody.',
        "Check whether all client workers run, and whether every client still sends samples: streamfl "
        "inspect CONFIG lists the clients that the server knows. If a client never comes back: streamfl "
        "forget CONFIG --client NAME.",
    ),
    Alert(
        "StreamflClientsWait",
        f"sum by ({MEMBER}) ({ClientMetrics.waiting_clients}) > 0 and {increased(ClientMetrics.labels, 15)} "
        "== 0",
        15,
        "warning",
        "Clients of {{ $labels.group }} wait for the model, and none learns.",
        "Their samples are kept, and predicted once a new version of the model comes.",
        "Check whether the server runs and is ready, and whether all clients that learning.staleness waits "
        "for send updates.",
    ),
    Alert(
        "StreamflClientsAlone",
        f"max by ({MEMBER}) ({UplinkMetrics.alone}) > 0",
        5,
        "warning",
        "Clients of {{ $labels.group }} learn alone: no new version of the model comes.",
        "Each client is about as good as without a federation. The updates stay in their topic for the "
        "server.",
        "Start the pofmkl-server, or check what its log says about these clients' updates. The alert ends "
        "with the next version.",
    ),
    Alert(
        "StreamflPredictedWithoutModel",
        f"{increased(ClientMetrics.version_zero_predictions, 60)} > 0.5 * "
        f"{increased(ClientMetrics.predictions, 60)} unless max by ({MEMBER}) "
        f"({UplinkMetrics.model_version}) > 0",
        15,
        "warning",
        "{{ $labels.group }} predicts without a model.",
        "More than half of the last hour's predictions were made with version 0 of the model, and no server "
        "has published one since. Each client is about as good as one without a federation.",
        "Start the pofmkl-server. If it runs: check whether federation.name and bus.url are the same at "
        "both, and what its log says about these clients' updates.",
    ),
    Alert(
        "StreamflModelStands",
        f"{increased(UplinkMetrics.updates, 15)} > 0 and max by ({MEMBER}) "
        f"(changes({UplinkMetrics.model_version}[15m])) == 0",
        5,
        "critical",
        "{{ $labels.group }} sends updates, but the version of its model does not change.",
        "The clients get no new model: the server does not run, refuses the updates, or its model does not "
        "arrive.",
        "Check whether the pofmkl-server runs and is ready, its dead letters and "
        f"{ServerMetrics.ignored_updates}, and the clients' {WorkerMetrics.table_rejections}.",
    ),
    alert_when_stopped(
        "StreamflUpdatesGone",
        ServerMetrics.updates_applied,
        [],
        "critical",
        "The server of {{ $labels.federation }} applies no updates any more.",
        "The model no longer changes. The alert fires after three times the usual interval between updates: "
        "15 minutes, three hours or three days.",
        "If updates are in the topic, check the server's log and dead letters. Otherwise check the clients: "
        f"their labels, {UplinkMetrics.skipped_updates}, and whether their workers run.",
    ),
    Alert(
        "StreamflUpdatesIgnored",
        f"{increased(ServerMetrics.ignored_updates, 60)} > 0.2 * "
        f"({increased(ServerMetrics.ignored_updates, 60)} + {increased(ServerMetrics.updates_applied, 60)})",
        15,
        "warning",
        "The server of {{ $labels.federation }} ignores one update in five.",
        "What these clients learnt only reaches their own models.",
        "Reasons: late: a client is too slow for lockstep, or in another mode than the server. duplicate: "
        "two processes send for a client, or a site was restored from a backup. empty: a client's budget "
        "does not allow a single kernel. The log names the clients.",
    ),
    Alert(
        "StreamflSuspectModel",
        f"{increased(ServerMetrics.model_repairs, 60)} > 0 or "
        f"{increased(UplinkMetrics.unsigned_parameters, 60)} > 0 or "
        f"{increased(ServerMetrics.superseded_updates, 60)} > 0",
        0,
        "critical",
        "Somebody without the right writes to the topics of {{ $labels.federation }}.",
        "The server has repaired the model, so it is as published. Two processes send for one client, or a "
        "stranger writes.",
        "Check the rights on the topics of updates and of the model, and the log of the worker that counted "
        "it. Give members keys.",
    ),
    Alert(
        "StreamflStaleUpdates",
        # The gauge shows one update, so this is the mean over the scraped ones.
        f"max by ({MEMBER}) (avg_over_time({ServerMetrics.staleness}[15m])) > 1000",
        30,
        "warning",
        "Updates of {{ $labels.federation }} are made on a model that is more than 1000 versions old.",
        "Clients learn from a very old model.",
        f"Check the clients' lag and {UplinkMetrics.model_version} of each: if it does not change, that "
        "client does not read the model's topic.",
    ),
)
