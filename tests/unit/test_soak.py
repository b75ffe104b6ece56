"""What every system provides for the soak: valid settings, a reproducible load, and a verdict that finds
damage."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from soak.calm import left_calmly
from soak.configuration import all_topics, load_members, write_configuration
from soak.subject import FEDERATION, Left, Plan, SoakedSystem, Verdict, find_soaked, latest, soaked_systems
from soak.verdict import check_inputs, judge_topics

from streamfl.contract.role import ConfigurationError, Record
from streamfl.contract.system import installed_systems
from streamfl.runtime.kinds import build_channels
from streamfl.runtime.remembered_positions import POSITION_KEY

TESTS = Path(__file__).parents[1]
MODES = [(name, mode) for name in soaked_systems() for mode in find_soaked(name)[1].modes]
SAMPLES = 240
PREDICTIONS = f"{FEDERATION}.predictions"


@pytest.fixture(name="soaked", scope="module", params=MODES, ids=lambda one: "-".join(one))
def _soaked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SoakedSystem, Left]:
    """A system in one of its modes, and its topics after a short load without faults on the memory bus."""
    name, mode = request.param
    system = find_soaked(name)[1]
    return system, left_calmly(system, Plan(mode), tmp_path_factory.mktemp("soak"), SAMPLES)


def changed(left: Left, topic: str, records: list[Record]) -> Left:
    """The same topics with other records in one of them."""
    return replace(left, topics={**left.topics, topic: records})


# The scheme chooses the options of [bus], the number of nodes the members: neither looks at the other.
@pytest.mark.parametrize(("nodes", "scheme"), [(1, "kafka"), (3, "kafka+librdkafka")])
@pytest.mark.parametrize(("system", "mode"), MODES)
def test_the_settings_of_every_member_load(
    system: str, mode: str, nodes: int, scheme: str, tmp_path: Path
) -> None:
    """Protects `make soak` from outdated settings: workers would not start, and only a broker would show
    that."""
    subject, plan = find_soaked(system)[1], Plan(mode, scheme, nodes)
    settings = load_members(write_configuration(subject, plan, f"{scheme}://127.0.0.1:1", tmp_path))
    assert settings.keys() == subject.members(plan).keys()
    for one in settings.values():
        assert one.federation.name == FEDERATION
        assert build_channels(one).inputs
    assert PREDICTIONS in all_topics(settings)


@pytest.mark.long
def test_a_load_is_the_same_every_time_and_another_by_another_seed(soaked: tuple[SoakedSystem, Left]) -> None:
    """Protects the verdict, which makes the load once more, and checks that seeds differ."""
    system, left = soaked
    first, again, other = (
        [system.records(plan, number) for number in range(20)]
        for plan in (left.plan, left.plan, replace(left.plan, seed=1))
    )
    assert first == again
    assert first != other


def test_a_calm_run_is_sound(soaked: tuple[SoakedSystem, Left]) -> None:
    """Protects the tests below: a verdict that complains about every run finds nothing."""
    system, left = soaked
    verdict = judge_topics(system, left)
    check_inputs(verdict, system, left, SAMPLES)
    assert verdict.wrong == []
    assert (verdict.samples, verdict.lost, verdict.doubled) == (SAMPLES, 0, 0)
    assert verdict.counts


def test_the_verdict_finds_a_lost_and_a_doubled_prediction(soaked: tuple[SoakedSystem, Left]) -> None:
    """Protects the soak from finding nothing: a sample without predictions, or with one twice, is counted and
    reported."""
    system, left = soaked
    predictions = left.topics[PREDICTIONS]
    of = {record: system.predicted(json.loads(record.value or b"")) for record in predictions}
    gone = next(iter(of.values()))
    without = [record for record, sample in of.items() if sample != gone]
    for records, expected in ((without, (1, 0)), ([*predictions, predictions[-1]], (0, 1))):
        verdict = judge_topics(system, changed(left, PREDICTIONS, records))
        assert (verdict.lost, verdict.doubled) == expected
        assert verdict.wrong
    verdict = judge_topics(system, changed(left, PREDICTIONS, without))
    assert any(gone in text for text in verdict.wrong)


def messages(left: Left) -> list[str]:
    """The topics between members that have messages."""
    users = {name for name, spec in all_topics(left.settings).items() if spec.users}
    topics = {
        one.topic for settings in left.settings.values() for one in build_channels(settings).inputs.values()
    } - users
    return sorted(topic for topic in topics if left.topics[topic])


@pytest.mark.long
def test_the_verdict_finds_a_lost_and_a_doubled_message(soaked: tuple[SoakedSystem, Left]) -> None:
    """Protects messages between members: predictions may be complete although a message was lost or sent
    twice."""
    system, left = soaked
    assert messages(left)
    for topic in messages(left):
        *others, record = left.topics[topic]
        again = msgspec.structs.replace(record, offset=record.offset + 1)
        assert judge_topics(system, changed(left, topic, others)).wrong, f"lost in {topic}"
        doubled = changed(left, topic, [*others, record, again])
        assert judge_topics(system, doubled).wrong, f"doubled in {topic}"


def test_the_verdict_finds_a_lost_and_a_doubled_record_of_the_load(soaked: tuple[SoakedSystem, Left]) -> None:
    """Protects the load's own check: without it, records missing from a user's topic would go unnoticed."""
    system, left = soaked
    for topic in sorted({one.topic for one in system.records(left.plan, SAMPLES - 1)}):
        *others, record = left.topics[topic]
        for found, text in (
            (others, "are not in their topics"),
            ([*others, record, record], "records too many"),
        ):
            verdict = Verdict()
            check_inputs(verdict, system, changed(left, topic, found), SAMPLES)
            assert any(text in one for one in verdict.wrong), (topic, verdict.wrong)


@pytest.mark.long
def test_the_verdict_finds_a_state_that_is_behind_and_a_dead_letter(
    soaked: tuple[SoakedSystem, Left],
) -> None:
    """Protects restarts: a state that lacks read records would be restored silently. Refused records are
    reported too."""
    system, left = soaked
    for settings in left.settings.values():
        state = next(iter(build_channels(settings).changelogs.values()))
        assert latest(left.topics[state], positions=True)
        without = [one for one in left.topics[state] if not (one.key or b"").startswith(POSITION_KEY)]
        wrong = changed(changed(left, state, without), settings.dead_letters, left.topics[PREDICTIONS][:1])
        told = judge_topics(system, wrong).wrong
        assert any("the state reflects 0 of" in text for text in told)
        assert any("dead letters" in text for text in told)


def test_an_unknown_system_is_refused_with_those_that_are_known() -> None:
    """Protects users who mistype a name, or name a system without a soak."""
    with pytest.raises(
        ConfigurationError, match=f"nobody: there is no such system; known are {', '.join(soaked_systems())}"
    ):
        find_soaked("nobody")
    first = next(system.name for system in installed_systems() if system.name in soaked_systems())
    assert find_soaked()[0] == first
    command = [sys.executable, "-m", "soak", "--mode", "never"]
    ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, f"{first} knows" in ended.stderr) == (2, True)
