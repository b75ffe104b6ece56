"""The alerts, tested with promtool: each fires when it should, and is silent on a healthy federation."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from alert_cases import CASES, Told
from prometheus import promtool

from streamfl.contract.system import load, systems_with
from streamfl.monitoring.alerts import MEMBER, WORKER_ALERTS, Alert, rules
from streamfl.reference.metrics import role_metrics, worker_metrics

ROOT = Path(__file__).parents[2]
SYSTEMS = systems_with("alerts")
FILES = {
    "alerts": ("every", WORKER_ALERTS),
    **{f"alerts-{name}": (name, load(one.alerts or "")) for name, one in SYSTEMS.items()},
}
OF = "streamfl_"
LABELS = {
    "system": "pofmkl",
    "federation": "plant",
    "role": "client",
    "group": "plant.c",
    "job": "streamfl",
    "instance": "a:1",
}
USED = re.compile(r"\bstreamfl_[a-z_]+\b")

# A number in a comparison or a multiplication.
NUMBER = re.compile(r"(?<=[<>=] )\d+(?:\.\d+)?\b|\b\d+(?:\.\d+)?(?= \*)")


def series(told: Told) -> list[dict[str, str]]:
    """Input series for promtool, with a worker's labels."""
    found = []
    for name, values in told.seen.items():
        metric, _, own = name.rstrip("}").partition("{")
        labels = LABELS | dict(re.findall(r'(\w+)="([^"]*)"', own))
        written = ",".join(f'{label}="{value}"' for label, value in labels.items())
        found.append(
            {"series": f"{metric if metric == 'up' else OF + metric}{{{written}}}", "values": values}
        )
    return found


def asked(name: str, told: Told, every: int) -> list[dict[str, Any]]:
    """promtool's tests of an alert that is evaluated each ``every`` minutes: it fires at its first minute and
    not before, or it never fires."""
    firing = f'ALERTS{{alertname="{name}",alertstate="firing"}}'

    def ask(expression: str, minute: int, value: float) -> dict[str, Any]:
        expected = [{"labels": "{}", "value": value}]
        return {"expr": f"{expression} or vector(0)", "eval_time": f"{minute}m", "exp_samples": expected}

    ever = f"clamp_max(count(count_over_time({firing}[30d])), 1)"
    if told.minute is None:
        return [
            ask(ever.replace("30d", f"{(told.end - told.begin) * told.step}m"), told.end * told.step, 0.0)
        ]
    first, *still = (-(-minute // every) * every for minute in (told.minute, *told.still))
    questions = [ask(f"clamp_max(count({firing}), 1)", first, 1.0)]
    if first:
        before = first - every
        span = f"{before - told.begin * told.step}m" if told.begin else "30d"
        questions.append(ask(ever.replace("30d", span), before, 0.0))
    return questions + [ask(f"clamp_max(count({firing}), 1)", minute, 1.0) for minute in still]


def operands(expression: str, skipped: Container[int] = ()) -> Iterator[str]:
    """Yields the expression without one side of an ``or``, for every side of each. skipped: places of an
    ``or`` that stay as they are."""
    for place in [match.start() for match in re.finditer(" or ", expression)]:
        depth, start = 0, place
        while start and depth >= 0 and not (depth == 0 and expression[start - 4 : start] == " or "):
            start -= 1
            depth += (expression[start] == ")") - (expression[start] == "(")
        start += depth < 0
        depth, end = 0, place + 4
        while (
            end < len(expression) and depth >= 0 and not (depth == 0 and expression[end : end + 4] == " or ")
        ):
            depth += (expression[end] == "(") - (expression[end] == ")")
            end += 1
        end -= depth < 0
        # A counter's value at its first scrape is tested once for all alerts.
        if place in skipped:
            continue
        if "unless last_over_time" not in expression[start:place] or not expression[place + 4 :].startswith(
            "increase("
        ):
            yield expression[:place] + expression[end:]
            yield expression[:start] + expression[place + 4 :]


def places_of_stopped(alert: Alert) -> set[int]:
    """Places of an expression of ``stopped`` that are tested with one alert for all: those that are not about
    other counters, and what is said of these for each further pause alike."""
    if "ALERTS{" not in alert.expression or alert.name == "StreamflSamplesGone":
        return set()
    places = set(range(len(alert.expression)))
    if (match := re.search(r" and \(", alert.expression)) is not None:
        depth, place = 1, match.end()
        while depth:
            depth += (alert.expression[place] == "(") - (alert.expression[place] == ")")
            places.discard(place)
            place += 1
    return places


def wrong(alert: Alert, step: int) -> Iterator[Alert]:
    """The alert with a typical mistake: another number, a shorter or longer time, a lost ``or``."""
    for minutes in {alert.minutes + step, max(0, alert.minutes - step)} - {alert.minutes}:
        yield replace(alert, minutes=minutes)
    skipped = places_of_stopped(alert)
    for match in NUMBER.finditer(alert.expression):
        if match.start() in skipped:
            continue
        value = float(match[0])
        whole = 1 < value < 10 and value.is_integer()
        for other in (
            (1.5,) if value == 0 else (value - 1, value + 1) if whole else (value * 0.8, value * 1.25)
        ):
            yield replace(
                alert,
                expression=f"{alert.expression[: match.start()]}{other:g}{alert.expression[match.end() :]}",
            )
    for expression in operands(alert.expression, skipped):
        yield replace(alert, expression=expression)


def variants(alert: Alert) -> dict[str, Alert]:
    """Its wrong variants by name. An alert that stays asks for itself by its name."""
    found = enumerate(wrong(alert, min(told.step for told in CASES[alert.name])))
    return {
        name: replace(one, name=name, expression=one.expression.replace(f'"{alert.name}"', f'"{name}"'))
        for name, one in ((f"{alert.name}Wrong{number}", one) for number, one in found)
    }


def write_tests(
    alert: Alert, mistakes: Mapping[str, Alert], cases: Sequence[Told], every: int, path: Path
) -> str:
    """A file for promtool about an alert or its wrong variants. cases: all with the same minutes between
    samples. every: minutes between two evaluations."""
    named = mistakes or {alert.name: alert}
    path.with_suffix(".rules").write_text(rules(alert.name, "", named.values()))
    tests = [
        {
            "interval": f"{told.step}m",
            "input_series": series(told),
            "promql_expr_test": [question for name in named for question in asked(name, told, every)],
        }
        for told in cases
    ]
    path.write_text(
        json.dumps(
            {
                "rule_files": [path.with_suffix(".rules").name],
                "evaluation_interval": f"{every}m",
                "tests": tests,
            }
        )
    )
    return str(path)


def failed(paths: Sequence[str], names: Container[str]) -> set[str]:
    """Names of these alerts that a case fails."""
    done = promtool("test", "rules", *paths)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1), said
    found = set(re.findall(r'alertname=\\?"(\w+?)\\?"', said))
    assert all(name in names for name in found), said
    return found


@cache
def metrics() -> frozenset[str]:
    found = set(worker_metrics())
    for system in SYSTEMS.values():
        found = found.union(*role_metrics(system).values())
    return frozenset(found)


def test_every_alert_is_tried_and_its_file_is_read() -> None:
    """Protects the table of cases from an untested alert, and an operator from a file that Prometheus
    refuses."""
    names = [one.name for _, alerts in FILES.values() for one in alerts]
    assert sorted(names) == sorted(CASES)
    checked = promtool("check", "rules", *(str(ROOT / "dashboards" / f"{name}.yaml") for name in FILES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", FILES)
def test_an_alert_is_told_when_it_should_be_and_not_else(name: str, tmp_path: Path) -> None:
    """Protects operators' sleep and their users: each alert fires from the right minute on when something is
    wrong, and never on a healthy federation. The cases are so close to the limits that a mistake in an alert
    fails them.
    """
    alerts: Sequence[Alert] = FILES[name][1]
    paths = []
    for alert in alerts:
        for number, kind in enumerate({(told.step, told.every) for told in CASES[alert.name]}):
            cases = [told for told in CASES[alert.name] if (told.step, told.every) == kind]
            paths.append(write_tests(alert, {}, cases, kind[1], tmp_path / f"{alert.name}{number}.yaml"))
    assert failed(paths, CASES) == set()
    # Each mistake is looked for until a case finds it.
    mistakes = {alert.name: variants(alert) for alert in alerts}
    for number in range(max(len(CASES[alert.name]) for alert in alerts)):
        paths = [
            write_tests(alert, left, [told], told.rough or told.every, tmp_path / f"{alert.name}.yaml")
            for alert in alerts
            if (left := mistakes[alert.name])
            for told in CASES[alert.name][number : number + 1]
        ]
        if not paths:
            break
        found = failed(paths, {one for some in mistakes.values() for one in some})
        mistakes = {
            of: {one: wrong_one for one, wrong_one in some.items() if one not in found}
            for of, some in mistakes.items()
        }
    unseen = [one for some in mistakes.values() for one in some.values()]
    assert not unseen, "\n".join(
        f"no case finds the mistake in {one.name} for {one.minutes}m: {one.expression}" for one in unseen
    )


@pytest.mark.parametrize("name", FILES)
def test_alerts_are_of_metrics_that_exist_and_say_what_to_do(name: str) -> None:
    """Protects from an alert that can never fire: each metric is served, and each label of its sentence is in
    its result."""
    alerts: tuple[Alert, ...] = FILES[name][1]
    for one in alerts:
        used = USED.findall(one.expression)
        assert used, one.name
        assert set(used) <= metrics(), one.name
        assert set(re.findall(r'alertname="(\w+)"', one.expression)) <= {one.name}
        assert all(text.endswith(".") for text in (one.means, one.remedy, one.summary)), one.name
        for label in re.findall(r"\$labels\.(\w+)", one.summary):
            assert label in {*MEMBER.split(", "), "reason", "instance", "topic"}, one.name
            assert re.search(rf"\b{label}\b", one.expression), one.name


def test_what_is_worth_an_alert_has_one() -> None:
    """Protects readers of a text that announces an alert: the alert exists."""
    asked_about = {
        used for _, alerts in FILES.values() for one in alerts for used in USED.findall(one.expression)
    }
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for text in page.read_text(encoding="utf-8").split("Worth an alert")[1:]:
            found += [
                (page.name, metric)
                for metric in USED.findall(text.partition("\n\n## ")[0].partition("Worth a look")[0])
            ]
    assert len(found) > 9
    assert not [(page, metric) for page, metric in found if metric not in asked_about]
