"""Descriptions of alerts, written as Prometheus' rules and as a runbook that says what to do.

Alerts of every worker are here. A system describes further alerts of its own in its tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from streamfl.contract.measurement import Metric
from streamfl.monitoring.pages import anchor
from streamfl.monitoring.promql import lag_by_partition
from streamfl.monitoring.shared_metrics import SharedMetrics
from streamfl.roles.partitioned_role import RefusalMetrics
from streamfl.runtime.health import HealthMetrics
from streamfl.runtime.metrics import WorkerMetrics

__all__ = [
    "MEMBER",
    "WORKER_ALERTS",
    "Alert",
    "alert_when_stopped",
    "gets_records",
    "increased",
    "member_sum",
    "rules",
    "runbook",
]

MEMBER = "system, federation, role, group"
"""The labels that identify a member, without those of a single worker."""


@dataclass(frozen=True)
class Alert:
    """A condition that an operator has to act on.

    name: in CamelCase, as in Prometheus' own alerts; it is the heading in the runbook too.
    expression: in PromQL; each series of its result is one alert.
    minutes: how long the expression has to hold before the alert fires.
    severity: "critical" wakes an operator, "warning" can wait until the morning.
    summary: what is wrong, in a sentence; ``{{ $labels.group }}`` is replaced by a label's value.
    means: what it means for the federation's users.
    remedy: what to look at, and what to do, in sentences.
    """

    name: str
    expression: str
    minutes: int
    severity: Literal["critical", "warning"]
    summary: str
    means: str
    remedy: str


def member_sum(expression: str, *labels: str) -> str:
    """Sum over the workers of one consumer group. The result keeps the member's labels and these further
    ones.

    >>> member_sum(f"{HealthMetrics.not_ready}", "reason")
    'sum by (system, federation, role, group, reason) (streamfl_not_ready)'
    """
    return f"sum by ({', '.join((MEMBER, *labels))}) ({expression})"


def increased(counter: Metric, minutes: int, *labels: str, **values: str | tuple[str, ...]) -> str:
    """Growth of a counter within the last ``minutes``, summed like :func:`member_sum`.

    values: only series with these values of the counter's own labels.

    >>> increased(SharedMetrics.labels, 15).partition(" or ")[2]
    'increase(streamfl_labels_total[15m]))'
    """
    name = counter.where(**values)
    # increase() ignores what a worker counted before its first scrape. The expression looks back an hour: a
    # worker that was unreachable for a while is not a new one.
    born = f"({name} unless last_over_time({name}[1h] offset {minutes}m))"
    return member_sum(f"{born} or increase({name}[{minutes}m])", *labels)


def gets_records(minutes: int) -> str:
    """A member of a vertical federation got samples or labels within the last minutes."""
    return (
        f"({increased(SharedMetrics.samples, minutes)} > 0 or {increased(SharedMetrics.labels, minutes)} > 0)"
    )


PAUSES = (
    ("15m", "5m", "2h", 0.05),
    ("3h", "1h", "1d", 0.05),
    ("3d", "1d", "14d", 0.05),
    ("4d", "1d", "14d", 0.3),
)
"""Each is a pause that is unusual, the interval in which a counter usually grows, the time before the pause
in which that is looked for, and the share of the intervals in it that may pass without growth: weekends, for
the last one."""

# Today's pause may begin an hour and a half before the usual time. A change to summer time is one hour.
YESTERDAY, THE_DAY_BEFORE, LAST_WEEK = "22h30m", "46h30m", "166h30m"


def alert_when_stopped(
    name: str,
    counter: Metric,
    while_growing: Sequence[Metric],
    severity: Literal["critical", "warning"],
    summary: str,
    means: str,
    remedy: str,
) -> Alert:
    """An alert that a counter which usually grows has stopped: it grew in 19 of 20 earlier intervals, and not
    in the last three.

    The intervals are five minutes, an hour and a day: a daily counter has stopped after three days, one that
    grows each second after 15 minutes, and one with weekends after four days. A pause is usual if one began
    at about this time a week ago or, in the first week, on the two days before. A usual pause that does not
    end has stopped three hours after it ended a week ago.

    The alert stays until the counter grows. What was usual before a long pause is not seen from its end, so
    this asks whether the alert was there already.

    while_growing: other counters. At least one of them has to grow as the alert begins; none: no condition.
    The rest is as in :class:`Alert`.

    >>> alert = alert_when_stopped("LabelsGone", SharedMetrics.labels, [], "warning", "", "", "")
    >>> alert.expression.count("ALERTS")
    3
    """

    def beside(pause: str) -> str:
        others = " or ".join(f"{_grown(other, pause)} > 0" for other in while_growing)
        return others and f" and ({others})"

    found = []
    for pause, time, before, share in PAUSES:
        usual = _usually_grown(counter, before, time, pause, share)
        found.append(f"{_grown(counter, pause)} == 0 and {usual} > 0{beside(pause)}{_unless(counter, pause)}")
    last_week = _usually_grown(counter, "3h", "5m", "7d", 0.05)
    found.append(f"{_grown(counter, '3h')} == 0 and {last_week} > 0{beside('3h')}")
    # A restart of Prometheus or of a worker may hide the alert for a while: the longer it has been there, the
    # longer.
    for pause, hidden in (("15m", "10m"), ("3h", "2h"), ("3d", "2d")):
        told = f'last_over_time(ALERTS{{alertname="{name}",alertstate="firing"}}[{hidden}])'
        found.append(f"{_grown(counter, pause)} == 0 and group by ({MEMBER}) ({told})")
    return Alert(name, " or ".join(found), 0, severity, summary, means, remedy)


def _unless(counter: Metric, pause: str) -> str:
    # After a week without records no pause of the next week is usual: a usual one began within 12 hours.
    began = f"{_grown(counter, pause, LAST_WEEK)} == 0 and {_grown(counter, '12h', LAST_WEEK)} > 0"
    if pause == "15m":
        # On a Monday the two days before say nothing.
        both = " and ".join(f"{_grown(counter, pause, day)} == 0" for day in (YESTERDAY, THE_DAY_BEFORE))
        return f" unless ({both} unless {_grown(counter, pause, LAST_WEEK)} > 0 or {began})"
    return f" unless ({began})" if pause == "3h" else ""


def _usually_grown(counter: Metric, before: str, time: str, offset: str, share: float) -> str:
    return f"quantile_over_time({share}, ({_grown(counter, time)})[{before}:{time}] offset {offset})"


def _grown(counter: Metric, time: str, offset: str = "") -> str:
    earlier = offset and f" offset {offset}"
    return member_sum(f"increase({counter}[{time}]{earlier})")


LAG = member_sum(lag_by_partition(MEMBER))
READY = HealthMetrics.ready

WORKER_ALERTS = (
    Alert(
        "StreamflNoWorker",
        f"group by ({MEMBER}) (last_over_time({READY}[1d]) or last_over_time({READY}[7d]) and on (job, "
        f"instance) up == 0) unless group by ({MEMBER}) ({READY})",
        5,
        "critical",
        "No worker of {{ $labels.group }} answers any more.",
        "This role does no work: a client makes no predictions, a server no new model. Nothing is lost, "
        "because records stay in their topics.",
        "Check whether the processes run. If not, the exit code and the last line of the log say why they "
        "ended. Start them again. If they were stopped on purpose, remove them from Prometheus' targets and "
        "silence the alert: it ends a day later.",
    ),
    Alert(
        "StreamflWorkerDown",
        f'up{{job=~".*streamfl.*"}} == 0 or up == 0 and on (job, instance) last_over_time({READY}[7d])',
        5,
        "warning",
        "The worker {{ $labels.instance }} does not answer.",
        "The other workers of its group, if there are any, have taken over its partitions.",
        "Check its process and its log. If it runs, check metrics.host, metrics.port and the network between "
        "it and Prometheus. For a worker that never answered, the alert only fires if the scrape job has "
        "streamfl in its name. Remove a worker that is gone for good from Prometheus' targets.",
    ),
    Alert(
        "StreamflNotServing",
        f"max by ({MEMBER}, instance, reason) ({HealthMetrics.not_ready}) == 1",
        5,
        "critical",
        "{{ $labels.instance }} of {{ $labels.group }} does not serve: {{ $labels.reason }}.",
        "The worker runs, but does nothing for this reason.",
        "Its /readyz says what is wrong and what to do. The page on metrics explains the reasons.",
    ),
    Alert(
        "StreamflNoProgress",
        f"{LAG} > 100 and {member_sum(f'rate({WorkerMetrics.records}[10m])')} == 0",
        10,
        "critical",
        "{{ $labels.group }} has records to read and reads none.",
        "Everything that depends on this role has stopped.",
        f"Check /readyz and the log of its workers. If {SharedMetrics.waiting_samples} is above 0, samples "
        "wait for the model: then check the server.",
    ),
    Alert(
        "StreamflLagGrows",
        # The limit is relative to the usual rate: some streams have ten records a day.
        f"{LAG} > 10 and {LAG} > {_grown(WorkerMetrics.records, '10m')} and deriv(({LAG})[30m:1m]) > 0",
        30,
        "warning",
        "{{ $labels.group }} falls behind: its lag grows, and is larger than what it reads in ten minutes.",
        "Predictions come later and later.",
        "Start more workers of this group, up to the number of partitions. If there are as many workers "
        "already, use faster machines or more partitions. With more partitions, keys move away from their "
        "state. streamfl repartition moves the state after them, if the role can do that (docs/changing.md). "
        "Otherwise do not add partitions.",
    ),
    alert_when_stopped(
        "StreamflSamplesGone",
        SharedMetrics.samples,
        [],
        "warning",
        "{{ $labels.group }} gets no samples any more.",
        "Nothing is predicted or learnt from them. The alert fires after three times the usual interval "
        "between samples: 15 minutes, three hours or three days.",
        "Check the writer of the topic. If the samples have ended as planned, nothing is wrong: stop the "
        "workers, or silence the alert. It stays until samples come again.",
    ),
    alert_when_stopped(
        "StreamflLabelsGone",
        SharedMetrics.labels,
        [SharedMetrics.samples, SharedMetrics.embeddings],
        "critical",
        "{{ $labels.group }} gets samples and no labels any more.",
        "It predicts, but learns nothing: the model no longer changes, and its error is unknown. The alert "
        "fires after three times the usual interval between labels: 15 minutes, three hours or three days. "
        "It stays until labels come again.",
        "Check the writer of the labels, and the field or topic of the labels. If labels are in the topic "
        f"but are not learnt, check {SharedMetrics.waiting_samples} and the dead letters.",
    ),
    Alert(
        "StreamflDeadLetters",
        f"{increased(WorkerMetrics.dead_letters, 15, 'reason')} > 0",
        0,
        "warning",
        "{{ $labels.group }} refused records: {{ $labels.reason }}.",
        "These records had no effect. They are in the dead-letter topic and can be sent back once the cause "
        "is fixed.",
        "streamfl dead-letters CONFIG shows them with the reason, and with --replay sends them back. What "
        "each reason means, and what to do, is in the section Refused records of this page and of the "
        "system's page.",
    ),
    Alert(
        "StreamflDeletedUnread",
        f"{increased(WorkerMetrics.deleted_unread_records, 15, 'topic')} > 0",
        0,
        "critical",
        "Records of {{ $labels.topic }} were deleted before {{ $labels.group }} had read them.",
        "They had no effect: samples were never predicted, other members' messages never counted. Reading "
        "continued after them.",
        "Let the topic keep its records for longer than workers may be away or behind: retention.ms and "
        "retention.bytes. The log names the offsets; streamfl inspect CONFIG shows how many there were.",
    ),
    Alert(
        "StreamflRecordsLost",
        f"{increased(WorkerMetrics.lost_records, 15, 'topic')} > 0",
        0,
        "critical",
        "The cluster has lost records of {{ $labels.topic }} that {{ $labels.group }} had read.",
        "A broker that was behind became the leader. What was learnt from the lost records stays. The "
        "records in their place are read.",
        "Set min.insync.replicas to 2 and leave unclean.leader.election.enable off. The writer of the "
        "records may have to write them again.",
    ),
    Alert(
        "StreamflMessagesRefused",
        f"{increased(RefusalMetrics.refused_messages, 15, 'reason')} > 0",
        0,
        "warning",
        "{{ $labels.group }} refused messages of other members: {{ $labels.reason }}.",
        "They had no effect. A member has another version or other settings, or a stranger writes to the "
        "members' topics.",
        "The log names the sender and the error. Run streamfl check CONFIG at that member, and check who may "
        "write to the topic.",
    ),
    Alert(
        "StreamflTableRejections",
        f"{increased(WorkerMetrics.table_rejections, 15, 'reason')} > 0",
        0,
        "warning",
        "{{ $labels.group }} refused records of the model: {{ $labels.reason }}.",
        "Somebody without the right writes to the model's topic, or members run different versions or "
        "settings.",
        "Check who may write to that topic. Run streamfl check CONFIG at the members.",
    ),
    Alert(
        "StreamflCommitsRefused",
        f"{increased(WorkerMetrics.commits_refused, 15)} > 0.2 * {increased(WorkerMetrics.commits, 15)}",
        15,
        "warning",
        "Many commits of {{ $labels.group }} are refused.",
        "Work is repeated, because partitions keep moving between workers. Each result is still written "
        "once.",
        "The log says why the group rebalances: workers restart, or batches take longer than the group's "
        "session timeout.",
    ),
    Alert(
        "StreamflRestarts",
        f"max by ({MEMBER}, instance) (changes({WorkerMetrics.start_time_seconds}[30m])) > 3",
        0,
        "critical",
        "{{ $labels.instance }} of {{ $labels.group }} starts again and again.",
        "At each start the worker restores its state, and does no other work meanwhile.",
        "The last line of its log before each start, and the exit code, say why it ended.",
    ),
)


def rules(group: str, page: str, alerts: Iterable[Alert]) -> str:
    """The text of a file of rules for Prometheus.

    group: the name of the rules' group.
    page: the place of the page with the :func:`runbook`. A URL becomes runbook_url, which Alertmanager and
    Grafana show as a link."""
    annotation = "runbook_url" if "://" in page else "runbook"
    lines = ["# Written from the code by `make reference`: a change belongs there.", "groups:"]
    lines += [f"  - name: {json.dumps(group)}", "    rules:"]
    for one in alerts:
        lines += [
            f"      - alert: {one.name}",
            f"        expr: {json.dumps(one.expression)}",
            f"        for: {one.minutes}m",
            f"        labels: {{severity: {one.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(one.summary)}",
            f"          description: {json.dumps(one.means)}",
            f"          {annotation}: {json.dumps(f'{page}#{anchor(one.name)}')}",
        ]
    return "\n".join(lines) + "\n"


def runbook(alerts: Iterable[Alert]) -> str:
    """The section of a page that says what to do about each alert."""
    parts = []
    for one in alerts:
        when = f"once this has held for {one.minutes} minutes" if one.minutes else "as soon as this holds"
        parts += [f"### {one.name}", one.means, f"**What to do.** {one.remedy}"]
        parts += [f"Its severity is {one.severity}. It is told {when}:", f"    {one.expression}"]
    return "\n\n".join(parts)
