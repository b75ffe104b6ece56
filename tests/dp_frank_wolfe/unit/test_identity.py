"""Server and parties with keys, on the memory bus: nobody else spends a budget or changes a model, and the
fit goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.federations import COLUMNS, ROWS, SERVER_MEMBER, settings_of
from identities import SignedFederation

from streamfl.cli.named_topics import find_topic
from streamfl.cli.preflight import Configured
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.identity.signed_records import signatures
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import find_kind

PARTIES = ("party-0", "party-1")
MEMBERS = {**dict.fromkeys(PARTIES, PARTY), SERVER_MEMBER: SERVER}


def signed_settings(member: str, sections: dict[str, dict[str, Any]]) -> DPFrankWolfeSettings:
    content = settings_of(member).model_dump(exclude_unset=True)
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    return DPFrankWolfeSettings.model_validate(content)


class Federation(SignedFederation):
    """Two parties and a server, and the rows of one window."""

    def __init__(self, folder: Path, keys: bool = True) -> None:
        super().__init__(folder, MEMBERS, SERVER_MEMBER, signed_settings, keys)
        random = np.random.default_rng(5)
        for row in range(ROWS):
            key, inputs = b"p%02d" % row, random.uniform(-1, 1, (len(PARTIES), COLUMNS)).tolist()
            for party, own in zip(PARTIES, inputs, strict=True):
                value = json.dumps({f"x{number}": one for number, one in enumerate(own)}).encode()
                self.bus.write([Outgoing(f"{party}-samples", key, value, 0)])
            self.bus.write([Outgoing("labels", key, json.dumps({"y": inputs[0][1]}).encode(), 0)])

    def model(self) -> dict[bytes | None, bytes | None]:
        found = {record.key: record.value for record in self.said("model")}
        assert len(found) == len(PARTIES)
        return found


@pytest.fixture(name="usual", scope="module")
def _usual(tmp_path_factory: pytest.TempPathFactory) -> dict[bytes | None, bytes | None]:
    """What is learnt without keys and without strangers."""
    federation = Federation(tmp_path_factory.mktemp("usual"), keys=False)
    federation.settle()
    return federation.model()


def test_keys_change_nothing_of_what_is_learnt(
    tmp_path: Path, usual: dict[bytes | None, bytes | None]
) -> None:
    """Protects a federation that gives its members keys: party and server sign what they say, and hear each
    other."""
    federation = Federation(tmp_path)
    federation.settle()
    assert federation.model() == usual
    federation.check_all_signed(*(f"{party}.{which}" for party in PARTIES for which in ("asks", "releases")))


@pytest.mark.parametrize(
    ("topic", "hears", "kind", "elsewhere"),
    [
        ("party-1.asks", "party-1", "ask", "party-0.asks"),
        ("party-0.releases", SERVER_MEMBER, "entities", "party-1.releases"),
    ],
)
def test_what_somebody_else_wrote_is_refused_and_the_fit_goes_on(
    tmp_path: Path, usual: dict[bytes | None, bytes | None], topic: str, hears: str, kind: str, elsewhere: str
) -> None:
    """Protects budgets and the model: who may write to the broker begins no fit, asks nothing and answers
    nothing in another's name.
    """
    federation = Federation(tmp_path)
    federation.check_strangers_are_refused(topic, hears, kind, elsewhere)
    assert federation.model() == usual


def test_the_model_is_signed_for_everybody_and_what_a_stranger_writes_there_is_refused(
    tmp_path: Path,
) -> None:
    """Protects who applies the model: with keys it is the server's, unchanged, or shown as refused without
    its weights."""
    federation = Federation(tmp_path)
    federation.settle()
    own = signed_settings("party-0", federation.keys.sections("party-0"))
    reader = Configured(Path("party.toml"), find_kind(PARTY), own)
    says = find_topic(reader, federation.bus, "model").says
    genuine = federation.said("model")[0]
    assert says(genuine) == json.loads(genuine.value or b"")
    assert says(msgspec.structs.replace(genuine, partition=3, offset=77)) == says(genuine), (
        "the bus chose its partition"
    )

    heavier = (genuine.value or b"").replace(b'"weights":[', b'"weights":[9.0,')
    party = federation.keys.identity("party-1", PARTY)
    strangers = {
        "unsigned": msgspec.structs.replace(genuine, headers=()),
        "forged": msgspec.structs.replace(genuine, value=heavier),
        "not_a_member": msgspec.structs.replace(
            genuine, value=heavier, headers=signatures(party, "f.model")(genuine.key, heavier, None)
        ),
    }
    assert {reason: says(record)["refused"] for reason, record in strangers.items()} == {
        reason: reason for reason in strangers
    }
    elsewhere = [{"key": b"party-1"}, {"key": None}, {"topic": "g.model"}, {"headers": genuine.headers * 2}]
    assert {says(msgspec.structs.replace(genuine, **place))["refused"] for place in elsewhere} == {"forged"}
    assert all("weights" not in says(record) for record in strangers.values())
