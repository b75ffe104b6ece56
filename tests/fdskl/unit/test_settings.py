"""Settings of FDSKL that cannot work, with the texts that say so; and the topics and rights that follow from
a topology."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fdskl.makers import settings_of
from pydantic import ValidationError

from streamfl.contract.role import BadRecord, Record
from streamfl.fdskl.config import WORKER
from streamfl.fdskl.learning.losses import prediction_of
from streamfl.fdskl.roles import ROLES

KIND = ROLES[WORKER]


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"federation": {"active": "p9"}}, "one of federation.parties"),
        ({"learning": {"step": 1000.0, "regularisation": 1e-3}}, "has to be below 1"),
        ({"learning": {"step_rule": "horizon"}}, "horizon is missing"),
        ({"learning": {"horizon": 5}}, "horizon has no meaning"),
        ({"learning": {"block_features": 7}}, "at most learning.features_limit = 6"),
        (
            {"learning": {"features_limit": 65_536}, "aggregation": {"circle_bits": 64}},
            "the sums of one entity are one record",
        ),
        (
            {"aggregation": {"mask": "paper"}, "bus": {"url": "kafka://localhost:9092"}},
            "set aggregation.study = true",
        ),
        ({"alignment": {"limit": 7}}, "at least learning.window = 8"),
        ({"aggregation": {"round_seconds": 0.5}}, "more than alignment.reply_seconds"),
        ({"learning": {"kernel": "matern", "matern_nu": 0.3}}, "greater than or equal to 0.5"),
        ({"learning": {"kernel": "matern", "matern_nu": 60}}, "less than or equal to 50"),
        ({"learning": {"bandwidth": 1e-300}}, "bandwidth"),
        ({"learning": {"bandwidth": 1e-13}}, "bandwidth"),
        ({"learning": {"bandwidth_multiplier": 1e-15}}, "greater than or equal to 0.001"),
        ({"learning": {"bandwidth": None}}, "or set learning.bandwidth"),
        ({"privacy": {"input_norm": 1.0}}, "input_norm is missing|protect only together"),
        ({"privacy": {"input_norm": 1.0, "input_noise": 1e9}}, "is expected"),
        ({"privacy": {"input_norm": 1.0, "input_noise": 1.0}}, "noise that others can compute"),
        ({"labels": None}, "labels is missing"),
        ({"samples": None}, "samples is missing"),
    ],
)
def test_settings_that_cannot_work_are_refused(sections: dict[str, Any], text: str) -> None:
    """Protects an operator from finding out later: the text says which key, and to which values."""
    content = msgspec.json.decode(settings_of("p0", 3).model_dump_json())
    for name, section in sections.items():
        content[name] = section if section is None else {**(content.get(name) or {}), **section}
    with pytest.raises(ValidationError, match=text):
        KIND.settings.model_validate(content)


def test_a_passive_party_has_no_labels() -> None:
    """Protects from a configuration that is of another party than it says."""
    content = msgspec.json.decode(settings_of("p0", 3).model_dump_json())
    content["party"] = {"name": "p1"}
    with pytest.raises(ValidationError, match="labels has no meaning at 'p1'"):
        KIND.settings.model_validate(content)


PARENTS = {
    "tree": {"p0": set(), "p1": {"p0"}, "p2": {"p1"}, "p3": {"p1"}},
    "star": {"p0": set(), "p1": {"p0"}, "p2": {"p0"}, "p3": {"p0"}},
    "ring": {"p0": set(), "p1": {"p2"}, "p2": {"p3"}, "p3": {"p0"}},
}


@pytest.mark.parametrize("topology", PARENTS)
@pytest.mark.parametrize("party", ["p0", "p1", "p2", "p3"])
def test_a_party_may_write_to_those_it_sends_to_and_to_no_other(topology: str, party: str) -> None:
    """Protects each inbox: who may write to it follows from the channels, and so do the rights that are
    granted."""
    channels = KIND.channels(settings_of(party, 4, aggregation={"topology": topology}))
    others = {"p0", "p1", "p2", "p3"} - {party}
    expected = {f"sums/{name}" for name in PARENTS[topology][party]} | {
        f"incarnations/{name}" for name in others
    }
    expected |= {f"rounds/{name}" for name in others} | {"predictions"} if party == "p0" else {"revisions/p0"}
    assert set(channels.outputs) == expected
    for name, topic in channels.outputs.items():
        kind, _, to = name.partition("/")
        assert topic == (f"f.{to}.{kind}" if to else "f.predictions")
    heard = {"labels", "revisions"} if party == "p0" else {"rounds"}
    # Whom nobody sends sums to needs no right to read any.
    sums = {"sums"} if any(party in parents for parents in PARENTS[topology].values()) else set()
    assert set(channels.inputs) == heard | sums | {"samples", "incarnations"}
    assert {name: receiver.name for name, receiver in channels.receivers.items()} == {
        name: name.partition("/")[2] for name in expected - {"predictions"}
    }
    topics = {topic.name for topic in KIND.topics(settings_of(party, 4, aggregation={"topology": topology}))}
    assert set(channels.outputs.values()) | {one.topic for one in channels.inputs.values()} <= topics


def test_the_masks_of_the_paper_have_parents_of_their_own() -> None:
    """Protects T2 from parents that no party may write to."""
    channels = KIND.channels(settings_of("p1", 4, aggregation={"mask": "paper", "topology": "ring"}))
    assert {name for name in channels.outputs if name.startswith("sums/")} == {"sums/p0", "sums/p2"}
    cautions = {
        topic.caution
        for topic in KIND.topics(settings_of("p1", 4, aggregation={"mask": "none"}))
        if topic.caution
    }
    assert cautions
    assert all("none" in text for text in cautions)


def test_a_party_alone_hears_nobody() -> None:
    """Protects one organisation that learns by itself from topics that nobody writes."""
    channels = KIND.channels(settings_of("p0", 1))
    assert (set(channels.inputs), set(channels.outputs)) == ({"samples", "labels"}, {"predictions"})


def test_labels_that_the_loss_cannot_take_are_refused_at_once() -> None:
    """Protects a label of another scale from waiting for its entity, and then being refused."""
    decode = KIND.channels(settings_of("p0", 2)).inputs["labels"].decode
    with pytest.raises(BadRecord, match="0 or 1 is expected"):
        decode(Record("labels", 0, 0, b"e", b'{"y": 0.5}'))
    assert decode(Record("labels", 0, 0, b"e", b'{"y": 1}')).label == 1.0


def test_users_read_predictions_in_their_own_unit() -> None:
    """Protects whoever reads predictions from f itself."""
    assert prediction_of("logistic", 0.0, 1.0)(0.0) == 0.5
    assert [prediction_of("smooth-hinge", 0.0, 1.0)(f) for f in (-9.0, 0.0, 1.0)] == [0.0, 0.5, 1.0]
    assert prediction_of("square", 10.0, 30.0)(0.25) == 15.0


@pytest.mark.parametrize(
    ("sections", "parties", "said"),
    [
        ({}, 2, True),
        ({}, 1, False),
        ({"bus": {"url": "memory://"}}, 2, False),
        ({"aggregation": {"mask": "none", "study": True}}, 2, False),
        ({"federation": {"members": "members.toml"}, "identity": {"key_file": "key.toml"}}, 2, False),
    ],
)
def test_an_operator_is_told_who_can_take_masks_off(
    sections: dict[str, Any], parties: int, said: bool
) -> None:
    """Protects an operator from trusting masks that are agreed on with whoever writes in a party's name."""
    role = KIND.build(settings_of("p0", parties, **{"bus": {"url": "kafka://localhost:9092"}, **sections}))
    assert [one.reason for one in role.notices()] == ["no_keys"] * said
    assert not [*role.notices()]
