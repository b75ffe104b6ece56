"""The alerts, tried by promtool: each is told when it should be, and is silent on a federation that works."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus import promtool

from streamfl.alerts import MEMBER, WORKER_ALERTS, Alert
from streamfl.reference.metrics import role_metrics, worker_metrics
from streamfl.system import load, systems_with

ROOT = Path(__file__).parents[2]
SYSTEMS = systems_with("alerts")
FILES = {"alerts": ("every", WORKER_ALERTS), **{f"alerts-{name}": (name, load(one.alerts or "")) for name, one in SYSTEMS.items()}}
OF = "streamfl_"
LABELS = {"system": "pofmkl", "federation": "plant", "role": "client", "group": "plant.c", "job": "streamfl", "instance": "a:1"}
USED = re.compile(r"\bstreamfl_[a-z_]+\b")

DAY = 24 * 60


@dataclass(frozen=True)
class Case:
    """What Prometheus has seen, minute by minute in promtool's notation, by the metric's name and labels.

    fires: series on which the alert is told at ``minute``. quiet: series of the same federation on which it is not.
    """

    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    minute: int = 70


def grows(by: str, minutes: int = 120) -> str:
    return f"0+{by}x{minutes}"


CASES: dict[str, Case] = {
    "StreamflNoWorker": Case({"ready": "1x30 stale"}, {"ready": "1x120"}, 50),
    "StreamflWorkerDown": Case({"up": "1x30 0x60", "ready": "1x30 stale"}, {"up": "1x120", "ready": "1x120"}, 50),
    "StreamflNotServing": Case({'not_ready{reason="bus"}': "0x30 1x60"}, {'not_ready{reason="bus"}': "0x30 1x3 0x60"}),
    "StreamflNoProgress": Case(
        {'consumer_lag_records{partition="0"}': "500x120", "records_total": "70x120"},
        {'consumer_lag_records{partition="0"}': "500x120", "records_total": grows("9")},
    ),
    "StreamflLagGrows": Case(
        # The worker of partition 1 is gone: another one tells of it.
        {'consumer_lag_records{partition="0"}': "0x120", 'group_lag_records{partition="1"}': "2000+10x120"},
        # What another one has seen of a partition that has its worker is some seconds old.
        {'consumer_lag_records{partition="0"}': "2000-10x120", 'group_lag_records{partition="0"}': "2000+10x120"},
        90,
    ),
    "StreamflDeadLetters": Case(
        {'dead_letters_total{reason="label"}': "0x60 22x60"}, {'dead_letters_total{reason="label"}': "22x120"}, 62
    ),
    "StreamflTableRejections": Case(
        {'table_rejections_total{reason="forged"}': "0x60 1x60"}, {'table_rejections_total{reason="forged"}': "1x120"}, 62
    ),
    "StreamflCommitsRefused": Case(
        {"commits_refused_total": grows("5"), "commits_total": grows("10")},
        {"commits_refused_total": grows("1"), "commits_total": grows("10")},
    ),
    "StreamflRestarts": Case({"start_time_seconds": "0+60x120"}, {"start_time_seconds": "5x60 70x60"}),
    "StreamflErrorAboveRunningMean": Case(
        {
            "squared_error_sum_total": grows("3", 200),
            "labels_total": grows("10", 200),
            'challenger_squared_error_sum_total{model="running-mean"}': grows("2", 200),
            'challenger_labels_total{model="running-mean"}': grows("10", 200),
        },
        {
            "squared_error_sum_total": grows("1", 200),
            "labels_total": grows("10", 200),
            'challenger_squared_error_sum_total{model="running-mean"}': grows("2", 200),
            'challenger_labels_total{model="running-mean"}': grows("10", 200),
        },
        190,
    ),
    "StreamflRegretRises": Case(
        {"regret": f"100x{DAY} 200x200", "lifetime_labels": f"1000x{DAY + 200}"},
        {"regret": f"100x{DAY} 200x200", "lifetime_labels": f"1000x{DAY} 3000x200"},
        DAY + 150,
    ),
    "StreamflBudgetExhausted": Case(
        {'skipped_updates_total{reason="budget"}': grows("9", 200), "updates_total": grows("10", 200)},
        {'skipped_updates_total{reason="budget"}': grows("2", 200), "updates_total": grows("10", 200)},
        190,
    ),
    "StreamflClientsWait": Case(
        {"waiting_clients": "3x120", "labels_total": "70x120"}, {"waiting_clients": "3x120", "labels_total": grows("1")}
    ),
    "StreamflSuspectModel": Case({"superseded_updates_total": "0x60 1x60"}, {"superseded_updates_total": "1x120"}, 62),
    # Of the latest update alone, so that one up-to-date client among many is enough to hide the others from whoever looks once.
    "StreamflStaleUpdates": Case({"staleness": " ".join(["5000 12"] * 60)}, {"staleness": " ".join(["1900 12"] * 60)}),
    "StreamflPartySilent": Case({"silent_parties_total": grows("1")}, {"silent_parties_total": "70x120"}),
    "StreamflPrivacyBudgetNearlySpent": Case(
        {"label_mu": "0.95x120", "label_budget_mu": "1x120"}, {"privacy_mu": "0.8x120", "privacy_budget_mu": "1x120"}
    ),
    "StreamflStepsRefused": Case({"refused_steps_total": "0x60 1x60"}, {"refused_steps_total": "1x120"}, 62),
    "StreamflRoundsAbandoned": Case(
        {'abandoned_rounds_total{reason="timeout"}': grows("2")}, {'abandoned_rounds_total{reason="timeout"}': "0x60 3x60"}
    ),
    "StreamflTrainingFailed": Case({"failed_trainings_total": "0x60 1x60"}, {"failed_trainings_total": "1x120"}, 62),
    "StreamflDecryptionRefused": Case({"refused_decryptions_total": "0x60 1x60"}, {"refused_decryptions_total": "1x120"}, 62),
    "StreamflReleaseRefused": Case({"refused_releases_total": "0x60 1x60"}, {"refused_releases_total": "1x120"}, 62),
    "StreamflAnswersMissing": Case({"missing_answers_total": "0x60 1x60"}, {"missing_answers_total": "1x120"}, 62),
}


def series(named: Mapping[str, str]) -> list[dict[str, str]]:
    """Input series as promtool has them, with the labels that each of a worker's has."""
    found = []
    for name, values in named.items():
        metric, _, own = name.rstrip("}").partition("{")
        labels = ",".join([f'{label}="{value}"' for label, value in LABELS.items()] + ([own] if own else []))
        found.append({"series": f"{metric if metric == 'up' else OF + metric}{{{labels}}}", "values": values})
    return found


@cache
def metrics() -> frozenset[str]:
    found = set(worker_metrics())
    for system in SYSTEMS.values():
        found = found.union(*role_metrics(system).values())
    return frozenset(found)


def test_every_alert_is_tried_and_its_file_is_read(tmp_path: Path) -> None:
    """Protects the table below from an alert that nobody tries, and an operator from a file that Prometheus refuses."""
    names = [one.name for _, alerts in FILES.values() for one in alerts]
    assert sorted(names) == sorted(CASES)
    for name in FILES:
        checked = promtool("check", "rules", str(ROOT / "dashboards" / f"{name}.yaml"))
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", FILES)
def test_an_alert_is_told_when_it_should_be_and_not_else(name: str, tmp_path: Path) -> None:
    """Protects an operator's sleep, and their users: promtool finds the alert on what is wrong, and none on what is well."""
    tests: list[Any] = []
    for alert in FILES[name][1]:
        case = CASES[alert.name]
        count = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}}) or vector(0)'
        for told, named in ((True, case.fires), (False, case.quiet)):
            expected = [{"labels": "{}", "value": float(told)}]
            asked = {"expr": f"clamp_max({count}, 1)", "eval_time": f"{case.minute}m", "exp_samples": expected}
            tests.append({"interval": "1m", "input_series": series(named), "promql_expr_test": [asked], "name": alert.name})
    path = tmp_path / "tests.yaml"
    rules = str(ROOT / "dashboards" / f"{name}.yaml")
    path.write_text(json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_alerts_are_of_metrics_that_exist_and_say_what_to_do(name: str) -> None:
    """Protects from an alert that can never be told: each metric is served, and each label in its sentence is in its result."""
    alerts: tuple[Alert, ...] = FILES[name][1]
    for one in alerts:
        used = USED.findall(one.expression)
        assert used, one.name
        assert set(used) <= metrics(), one.name
        assert all(text.endswith(".") for text in (one.means, one.remedy, one.summary)), one.name
        for label in re.findall(r"\$labels\.(\w+)", one.summary):
            assert label in {*MEMBER.split(", "), "reason", "instance"}, one.name
            assert re.search(rf"\b{label}\b", one.expression), one.name
