"""The generated pages and dashboards."""

from __future__ import annotations

import functools
import math
import re
import runpy
import sys
from pathlib import Path
from random import Random

import pytest

from streamfl.contract.measurement import declared
from streamfl.contract.system import System, installed_systems, load
from streamfl.reference import pages
from streamfl.reference.metrics import role_metrics, worker_metrics
from streamfl.reference.settings import sections
from streamfl.testing.fuzz.targets import RoleTarget
from streamfl.testing.proof import installed_proofs

ROOT = Path(__file__).parents[2]
# Systems of other packages have their pages there.
OWN = [system for system in installed_systems() if system.roles.startswith("streamfl.")]
PROOFS = installed_proofs()
FUZZED = [system for system in installed_systems() if system.name in PROOFS and PROOFS[system.name].fuzz]


@functools.cache
def fuzzed(name: str) -> list[RoleTarget]:
    """The system's roles after traffic of every kind."""
    made = [make(target) for target, make in load(PROOFS[name].fuzz)(Random(0)).items()]
    found = [target for target in made if isinstance(target, RoleTarget)]
    for target in found:
        target.finish()
    return found


@functools.cache
def written() -> dict[str, str]:
    return pages(OWN)


def test_every_page_is_as_the_code_has_it() -> None:
    """Protects the reader's trust: a changed key, bound, metric or panel is on its page after `make
    reference`."""
    stale = [path for path, text in written().items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert not stale


def test_there_is_no_page_of_what_is_gone() -> None:
    """Protects the reader from pages and dashboards of a removed or renamed system, which are no longer
    generated."""
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("docs/reference", "dashboards")
        for path in (ROOT / folder).iterdir()
    }
    assert there == written().keys()


def test_each_alert_links_to_its_heading_and_no_two_headings_are_alike() -> None:
    """Protects whoever follows an alert: of two headings with one anchor, the link leads to the first, such
    as a section's."""
    anchors = {}
    for path, text in written().items():
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE) if path.endswith(".md") else []
        anchors[path] = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert len(anchors[path]) == len(set(anchors[path])), path
    links = re.findall(r'alert: (\w+)\n(?: .*\n)*? +runbook: "(.+)#(.+)"', "".join(written().values()))
    assert len(links) > 50
    for name, path, anchor in links:
        assert anchor == name.lower()
        assert anchor in anchors[path]


@pytest.mark.parametrize("system", installed_systems(), ids=lambda system: system.name)
def test_every_setting_says_what_it_means(system: System) -> None:
    """Protects users who configure a member: without a description a key or a section can only be guessed."""
    for kind in load(system.roles).values():
        for name, section in sections(kind.settings).items():
            assert section.__doc__, name
            for key, field in section.model_fields.items():
                assert (field.description or "").strip().endswith("."), f"{name}.{key}"


@pytest.mark.parametrize("system", FUZZED, ids=lambda system: system.name)
def test_every_metric_says_what_it_means(system: System) -> None:
    """Protects readers of /metrics: each role has metrics, each with a help text, and no label grows with the
    number of clients."""
    for kind, found in role_metrics(system).items():
        assert found, kind
        for name, one in found.items():
            assert one.help, name
            assert set(one.labels) <= {"reason", "model"}, name
    for name, one in worker_metrics().items():
        assert one.help, name
        assert set(one.labels) <= {"reason", "topic", "partition", "work"}, name


@pytest.mark.long
@pytest.mark.parametrize("system", FUZZED, ids=lambda system: system.name)
def test_what_is_measured_is_declared(system: System) -> None:
    """Protects pages, dashboards and alerts, which are written from declarations: a role measures what its
    kind declares, no more and no less, and no label has another value.
    """
    known = {
        kind: {one.name: one for one in declared(*role.metrics)} for kind, role in load(system.roles).items()
    }
    measured: dict[str, set[str]] = {kind: set() for kind in known}
    for target in fuzzed(system.name):
        for one in target.role.measure():
            metric = known[target.settings.role.kind][one.name]
            measured[target.settings.role.kind].add(one.name)
            assert (one.kind, one.help, one.headline) == (metric.kind, metric.help, metric.headline), one.name
            assert [label for label, _ in one.labels] == [*metric.labels], one.name
            assert all(value in (metric.labels[label] or [value]) for label, value in one.labels), one
    assert measured == {kind: {*names} for kind, names in known.items()}


@pytest.mark.parametrize("system", FUZZED, ids=lambda system: system.name)
def test_what_is_said_of_late_ends(system: System) -> None:
    """Protects the dashboard from last week's value: every metric about recent labels has an end of
    validity."""
    found = {
        (one.name, one.until < math.inf)
        for target in fuzzed(system.name)
        for one in target.role.measure()
        if "the last 1000" in one.help
        or (one.name.startswith("held_out_") and one.name != "held_out_entities")
    }
    assert {one for one, ends in found if not ends} == set()
    # DP Frank-Wolfe measures nothing against labels, because such a metric would reveal them without noise.
    assert bool(found) == (system.name != "dp-frank-wolfe")


def test_a_page_is_written_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects `make reference`: it writes what the test above expects, and an unknown system is an error."""

    def write(name: str) -> None:
        monkeypatch.setattr(sys, "argv", ["reference", "--root", str(tmp_path), name])
        runpy.run_module("streamfl.reference", run_name="__main__")

    write(OWN[0].name)
    path = f"docs/reference/{OWN[0].name}.md"
    assert (tmp_path / path).read_text(encoding="utf-8") == written()[path]
    with pytest.raises(SystemExit, match="2"):
        write("nobodys")
    assert "no such system: nobodys" in capsys.readouterr().err
