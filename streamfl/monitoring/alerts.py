"""Descriptions of alerts, written as Prometheus' rules and as a runbook that says what to do.

Alerts of every worker are here. A system describes further alerts of its own in its laboratory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from streamfl.monitoring.pages import anchor
from streamfl.monitoring.promql import lag_by_partition

__all__ = ["MEMBER", "WORKER_ALERTS", "Alert", "gets_records", "increased", "member_sum", "rules", "runbook", "stopped"]

MEMBER = "system, federation, role, group"
"""The labels that identify a member, without those of a single worker."""


@dataclass(frozen=True)
class Alert:
    """A condition that an operator has to act on.

    name: in CamelCase, as in Prometheus' own alerts; it is the heading in the runbook too.
    expression: in PromQL; each of its series is an alert.
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
    """The sum over the workers of one consumer group, by these further labels.

    >>> member_sum("streamfl_consumer_lag_records", "topic")
    'sum by (system, federation, role, group, topic) (streamfl_consumer_lag_records)'
    """
    return f"sum by ({', '.join((MEMBER, *labels))}) ({expression})"


def increased(counter: str, minutes: int, *labels: str, chosen: str = "") -> str:
    """How much one of streamfl's counters grew within the last minutes, summed as :func:`member_sum` does.

    chosen: a selector of series, in braces.

    >>> increased("dead_letters_total", 15).partition(" or ")[2]
    'increase(streamfl_dead_letters_total[15m]))'
    """
    name = f"streamfl_{counter}{chosen}"
    # increase() ignores what a worker counted before its first scrape. Looks back an hour, so that a worker that could not be
    # reached for a while is not taken for a new one.
    born = f"({name} unless last_over_time({name}[1h] offset {minutes}m))"
    return member_sum(f"{born} or increase({name}[{minutes}m])", *labels)


def gets_records(minutes: int) -> str:
    """A member of a vertical federation got samples or labels within the last minutes."""
    return f"({increased('samples_total', minutes)} > 0 or {increased('labels_total', minutes)} > 0)"


def stopped(counter: str, *while_growing: str) -> str:
    """A counter has stopped that usually grows: it grew in 19 of 20 earlier intervals, and not in the last three.

    The intervals are five minutes, an hour and a day: what comes once a day has stopped after three days, and what comes each
    second after a quarter of an hour. while_growing: other counters, one of which has to go on growing; none: no condition.

    >>> stopped("labels_total").count(" or ")
    2
    """
    found = []
    for time, before in (("5m", "2h"), ("1h", "1d"), ("1d", "14d")):
        three = f"{3 * int(time[:-1])}{time[-1]}"
        usual = f"quantile_over_time(0.05, ({_grown(counter, time)})[{before}:{time}] offset {three})"
        others = " or ".join(f"{_grown(other, three)} > 0" for other in while_growing)
        found.append(f"{_grown(counter, three)} == 0 and {usual} > 0" + (f" and ({others})" if others else ""))
    return " or ".join(found)


def _grown(counter: str, time: str) -> str:
    return member_sum(f"increase(streamfl_{counter}[{time}])")


LAG = member_sum(lag_by_partition(MEMBER))

WORKER_ALERTS = (
    Alert(
        "StreamflNoWorker",
        f"group by ({MEMBER}) (last_over_time(streamfl_ready[1d]) or last_over_time(streamfl_ready[7d]) and on (job, instance) "
        f"up == 0) unless group by ({MEMBER}) (streamfl_ready)",
        5,
        "critical",
        "No worker of {{ $labels.group }} answers any more.",
        "Nothing of this role is done: no predictions if it is a client, no new model if it is a server. Nothing is lost, "
        "the topics keep it.",
        "Look whether the processes run, and why they ended: the exit code and the last line of the log say it. Start "
        "them again. If they were taken down on purpose, take them out of Prometheus' targets and silence the alert: it ends a day "
        "after they were.",
    ),
    Alert(
        "StreamflWorkerDown",
        'up{job=~".*streamfl.*"} == 0 or up == 0 and on (job, instance) last_over_time(streamfl_ready[7d])',
        5,
        "warning",
        "The worker {{ $labels.instance }} does not answer.",
        "The other workers of its group have taken its partitions over, if there are others.",
        "Look at its process and its log. If it runs, look at metrics.host, metrics.port and the network between it and "
        "Prometheus. One that never answered is told of where the scrape's job has streamfl in its name. One that is gone for "
        "good belongs out of Prometheus' targets.",
    ),
    Alert(
        "StreamflNotServing",
        f"max by ({MEMBER}, instance, reason) (streamfl_not_ready) == 1",
        5,
        "critical",
        "{{ $labels.instance }} of {{ $labels.group }} does not serve: {{ $labels.reason }}.",
        "The worker runs, and does nothing for this reason.",
        "Ask its /readyz: it says in words what is wrong and what to do. The reasons are explained on the page of metrics.",
    ),
    Alert(
        "StreamflNoProgress",
        f"{LAG} > 100 and {member_sum('rate(streamfl_records_total[10m])')} == 0",
        10,
        "critical",
        "{{ $labels.group }} has records to read and reads none.",
        "Whatever depends on this role stands still.",
        "Look at /readyz and the log of its workers. Samples that wait for the model show in streamfl_waiting_samples: "
        "then look at the server.",
    ),
    Alert(
        "StreamflLagGrows",
        # Relative to the usual rate: in some streams ten records are a day's.
        f"{LAG} > 10 and {LAG} > {_grown('records_total', '10m')} and deriv(({LAG})[30m:1m]) > 0",
        30,
        "warning",
        "{{ $labels.group }} falls behind what is written, by more than it takes in ten minutes.",
        "Predictions come later and later.",
        "Start more workers of this group, up to the number of partitions. If there are as many workers already, faster machines "
        "are left, or more partitions: keys then move away from their state, and streamfl repartition moves it after them, where "
        "the role can do that (docs/changing.md). Do not add partitions otherwise.",
    ),
    Alert(
        "StreamflSamplesGone",
        stopped("samples_total"),
        0,
        "warning",
        "{{ $labels.group }} gets no samples any more.",
        "Nothing is predicted or learnt of what they tell. It is told after three of the times in which samples usually came: "
        "a quarter of an hour, three hours or three days.",
        "Look at whoever writes the topic. If the samples have come to their end as they should, nothing is wrong: it is over "
        "once that is usual.",
    ),
    Alert(
        "StreamflLabelsGone",
        stopped("labels_total", "samples_total", "embeddings_total"),
        0,
        "critical",
        "{{ $labels.group }} gets samples and no labels any more.",
        "It predicts, and learns nothing: the model stands still, and nobody knows how good it is. It is told after three of the "
        "times in which labels usually came: a quarter of an hour, three hours or three days.",
        "Look at whoever writes the labels, and at the field or topic that they come in. Where they lie in the topic and are not "
        "learnt: look at streamfl_waiting_samples, and at the dead letters.",
    ),
    Alert(
        "StreamflDeadLetters",
        f"{increased('dead_letters_total', 15, 'reason')} > 0",
        0,
        "warning",
        "{{ $labels.group }} refused records: {{ $labels.reason }}.",
        "These records had no effect. They lie in the dead-letter topic and can be sent back once the cause is gone.",
        "streamfl dead-letters CONFIG shows them with the reason in words, and with --replay sends them back.",
    ),
    Alert(
        "StreamflDeletedUnread",
        f"{increased('deleted_unread_records_total', 15, 'topic')} > 0",
        0,
        "critical",
        "Records of {{ $labels.topic }} were deleted before {{ $labels.group }} had read them.",
        "They had no effect: samples were never predicted, messages of other members never counted. Reading went on behind them.",
        "Let the topic keep its records for longer than workers may be away or behind: retention.ms and retention.bytes. The log "
        "says which offsets are gone; streamfl inspect CONFIG says how many.",
    ),
    Alert(
        "StreamflRecordsLost",
        f"{increased('lost_records_total', 15, 'topic')} > 0",
        0,
        "critical",
        "The cluster has lost records of {{ $labels.topic }} that {{ $labels.group }} had read.",
        "A broker that was behind became the leader. What was learnt of these records stays. What stands in their place is read.",
        "Set min.insync.replicas to 2 and leave unclean.leader.election.enable off. Whoever wrote the records may have to write "
        "them again.",
    ),
    Alert(
        "StreamflMessagesRefused",
        f"{increased('refused_messages_total', 15, 'reason')} > 0",
        0,
        "warning",
        "{{ $labels.group }} refused messages of other members: {{ $labels.reason }}.",
        "They had no effect. A member has another version or other settings, or a stranger writes to the members' topics.",
        "The log says whose message it was and what is wrong with it. Run streamfl check CONFIG at that member, and look at who "
        "may write to the topic.",
    ),
    Alert(
        "StreamflTableRejections",
        f"{increased('table_rejections_total', 15, 'reason')} > 0",
        0,
        "warning",
        "{{ $labels.group }} refused records of the model: {{ $labels.reason }}.",
        "Somebody writes to the model's topic who should not, or members run different versions or settings.",
        "Look at who may write to that topic. Run streamfl check CONFIG at the members.",
    ),
    Alert(
        "StreamflCommitsRefused",
        f"{increased('commits_refused_total', 15)} > 0.2 * {increased('commits_total', 15)}",
        15,
        "warning",
        "Many commits of {{ $labels.group }} are refused.",
        "Work is done twice: partitions move between workers all the time. Results are still there once.",
        "Look in the log for why the group rebalances: workers that restart, or batches longer than the session timeout "
        "of the group.",
    ),
    Alert(
        "StreamflRestarts",
        f"max by ({MEMBER}, instance) (changes(streamfl_start_time_seconds[30m])) > 3",
        0,
        "critical",
        "{{ $labels.instance }} of {{ $labels.group }} starts again and again.",
        "Each start takes its state back and does nothing else meanwhile.",
        "The last line of its log before each start, and the exit code, say why it ended.",
    ),
)


def rules(group: str, page: str, alerts: Iterable[Alert]) -> str:
    """The text of a file of rules for Prometheus.

    group: the name of the rules' group.
    page: the place of the page with the :func:`runbook`. A URL becomes runbook_url, which Alertmanager and Grafana show as a link.
    """
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
