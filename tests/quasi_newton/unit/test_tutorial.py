"""The tutorial of two organisations that learn a scorecard, done as its page says."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from page_commands import page_text
from tutorials import CREDIT_FIELDS, Row, Tutorial, check_topics, files_of, simulated

from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.key_file import make_key_file
from streamfl.quasi_newton.members.coordinator import CoordinatorTask
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import TRAINED
from streamfl.roles.partitioned_role import PartitionedRole

PAGE = page_text("quasi-newton.md", "Tutorial")
FILES = files_of(PAGE)
AUDITOR = 2
WHO = ("the bank", "the shop", "the auditor")
ROWS = 1500


def read(file: str) -> QuasiNewtonSettings:
    return QuasiNewtonSettings(**tomllib.loads(file))


def test_its_configurations_are_valid() -> None:
    """Protects two organisations' first try: all files load, agree where they have to, and are all that is
    needed."""
    settings = [read(file) for file in FILES]
    assert [item.role.kind.rpartition("-")[2] for item in settings] == ["guest", "host", "coordinator"]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert (
        len({repr((item.federation, item.learning, item.encryption.key_fingerprint)) for item in settings})
        == 1
    )
    assert {item.encryption.precision for item in settings} == {"paillier"}


def test_its_table_of_topics_is_whole() -> None:
    """Protects whoever grants rights by the page: these topics and no others are there, and it says who
    writes and reads which."""
    check_topics(PAGE, {name: read(file) for name, file in zip(WHO, FILES, strict=True)})


@pytest.fixture(name="customers", scope="module")
def _customers() -> list[Row]:
    """Who defaulted follows from the bank's and the shop's columns together."""
    draws = np.random.default_rng(4)
    inputs = draws.normal(size=(ROWS, 5)).round(3)
    defaulted = (inputs @ [0.5, -1.0, 0.5, 1.5, 1.5] + draws.logistic(size=ROWS) > 0.5).astype(float)
    # In the units of the page.
    inputs = inputs * [12, 9000, 700, 3, 2] + [45, 31000, 900, 6, 2]
    columns = [name for names in CREDIT_FIELDS.values() for name in names]
    return [
        dict(zip(columns, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]


def members_in(folder: Path) -> list[QuasiNewtonSettings]:
    """The members of the page, with secrets made as it says. The key is short and entities are few, so that
    it takes seconds."""
    calls = iter(range(10**9))
    key = make_key_file(
        folder / "auditor.keys", 512, lambda size: hashlib.shake_256(b"%d" % next(calls)).digest(size)
    )
    members = []
    for number, file in enumerate(FILES):
        home = folder / str(number)
        home.mkdir()
        for name, content in (("own.secret", str(number)), ("link.secret", "both")):
            (home / name).write_bytes(hashlib.sha256(content.encode()).digest())
            (home / name).chmod(0o600)
        own = tomllib.loads(file)
        encryption = own["encryption"]
        encryption |= {"key_fingerprint": key.public.fingerprint, "key_bits": 512, "study": True}
        if number == AUDITOR:
            encryption["key_file"] = str(folder / encryption["key_file"])
        else:
            for setting in ("secret_file", "link_secret_file"):
                encryption[setting] = str(home / encryption[setting])
            own["alignment"]["entities"] = 1000
        members.append(QuasiNewtonSettings(**own))
    return members


@pytest.mark.long
def test_a_history_is_learnt_from_once_all_three_run(tmp_path: Path, customers: list[Row]) -> None:
    """Protects a newcomer's first try: with the files of the page and secrets made as it says, a training
    begins by itself, of the customers that both know, and each party has weights of its own in the end. Then
    all whom both know are scored, as the page shows it, and so is who comes after a restart.
    """
    tutorial = Tutorial(members_in(tmp_path), "customer", customers, CREDIT_FIELDS, patience=40)
    tutorial.start()
    # Each knows some that the other one does not.
    tutorial.write("baskets", range(150, ROWS))
    tutorial.write("accounts", range(ROWS - 150))
    tutorial.write("outcomes", range(ROWS - 150))
    tutorial.settle()
    bank, shop, auditor = (cast(PartitionedRole[Any], worker.role).task(0) for worker in tutorial.workers)
    assert isinstance(bank, PartyTask)
    assert isinstance(shop, PartyTask)
    assert isinstance(auditor, CoordinatorTask)
    assert (bank.progress.phase, shop.progress.phase, auditor.trouble) == (TRAINED, TRAINED, None)
    assert bank.progress.batches == 1
    assert set(bank.learnt) == set(shop.learnt) <= {f"customer-{number}" for number in range(150, ROWS - 150)}
    models = [bank.iterates.model, shop.iterates.model]
    assert [len(model) for model in models if model is not None] == [4, 2]
    rows = pd.DataFrame(customers)
    columns = rows[list(CREDIT_FIELDS["accounts"] + CREDIT_FIELDS["baskets"])]
    columns = columns.clip(columns.quantile(0.01), columns.quantile(0.99), axis=1)
    scaled = ((columns - columns.mean()) / columns.std()).to_numpy()
    outputs = scaled[:, :3] @ models[0][:3] + models[0][3] + scaled[:, 3:] @ models[1]
    assert np.mean((outputs > 0) == (rows["defaulted"] > 0.5)) > 0.75
    scored = tutorial.contents("credit.predictions")
    newest = {one["entity"]: one for one in scored}
    assert newest.keys() == {f"customer-{number}" for number in range(150, ROWS - 150)}
    assert {(one["model"], one["probability"] is None) for one in newest.values()} == {(1, False)}
    numbers = [int(name.removeprefix("customer-")) for name in newest]
    apart = np.array([one["output"] for one in newest.values()]) - outputs[numbers]
    # Ends of columns are those of the rows that were learnt from: a few customers lie beyond them.
    assert np.quantile(np.abs(apart), 0.95) < 0.1
    assert np.abs(apart).max() < 0.3
    chances = np.array([one["probability"] for one in newest.values()])
    assert np.mean((chances > 0.5) == (rows["defaulted"][numbers] > 0.5)) > 0.75
    (line,) = re.findall(r'^    (\{"entity".*\})$', PAGE, re.MULTILINE)
    assert list(json.loads(line)) == list(scored[-1])
    tutorial.stop()
    tutorial.start()
    tutorial.settle()
    tutorial.write("accounts", range(ROWS - 150, ROWS))
    tutorial.settle()
    later = {one["entity"] for one in tutorial.contents("credit.predictions")[len(scored) :]}
    assert later == {f"customer-{number}" for number in range(ROWS - 150, ROWS)}
    again = [cast(PartitionedRole[PartyTask], worker.role).task(0) for worker in tutorial.workers[:2]]
    for party, model in zip(again, models, strict=True):
        np.testing.assert_array_equal(party.iterates.model, model)
    tutorial.stop()


@pytest.mark.long
@pytest.mark.parametrize("name", ["bank", "shop", "auditor"])
def test_the_command_that_says_whether_it_is_worth_it_runs(
    name: str,
    customers: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects the first thing that is tried: the command of the page takes any member's file as it stands
    there, without a broker, a key or a secret, and says what the shop's columns are worth.
    """
    file = FILES[("bank", "shop", "auditor").index(name)]
    found = simulated(PAGE, tmp_path / "bank.toml", file, customers, monkeypatch, capsys)
    assert (found["guest"], found["entities"], found["test_entities"]) == ("bank", 1000, 300)
    assert found["auc"] > found["guest_alone"]["auc"] + 0.1
