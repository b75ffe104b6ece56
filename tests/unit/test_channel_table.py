"""A channel is declared once, as a row; everything that the bus has to know of it is derived from the row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record

PARTIES = {"ann": "party", "bob": "party"}
ROWS = [
    Channel(name="samples", links={(USER, "ann"): "columns"}, decode=lambda record: record),
    Channel(
        name="answers",
        links={(party, "server"): f"fed.{party}.answers" for party in PARTIES},
        decode=lambda record: record,
        from_each=True,
        makes_room=True,
        like="samples",
        caution="numbers in plain",
    ),
    Channel(
        name="asks",
        links={("server", party): f"fed.{party}.asks" for party in PARTIES},
        decode=lambda record: record,
        to_each=True,
        partitions=3,
        reason="for a test",
    ),
    Channel(
        name="notes",
        links={(writer, reader): "fed.notes" for writer in PARTIES for reader in PARTIES},
        decode=lambda record: record,
        claimed_sender=lambda message: "bob",
    ),
    Channel(
        name="model",
        links={("server", "ann"): "fed.model"},
        decode=lambda record: record,
        whole=True,
        published=True,
        signed_within=True,
    ),
    Channel(name="predictions", links={("server", USER): "fed.predictions"}, time_of=lambda headers: 1.0),
    Channel(name="state", links={("ann", "ann"): "fed.ann.state"}, state=True, lasting=True, like="samples"),
]
MESSAGE = Record("columns", 0, 0, None, None)


def table(own: str) -> ChannelTable:
    return ChannelTable(own, ROWS, PARTIES)


def claimed(own: str, channel: str) -> Any:
    sender = table(own).channels.inputs[channel].sender
    return None if sender is None else (sender.kind, sender.claimed_sender(MESSAGE))


def test_each_end_of_a_channel_sees_its_own_half() -> None:
    ann, server = table("ann").channels, table("server").channels
    assert {name: one.topic for name, one in ann.inputs.items()} == {
        "samples": "columns",
        "asks": "fed.ann.asks",
        "notes": "fed.notes",
    }
    assert ann.outputs == {"answers": "fed.ann.answers", "notes": "fed.notes"}
    assert {name: one.topic for name, one in server.inputs.items()} == {
        "answers/ann": "fed.ann.answers",
        "answers/bob": "fed.bob.answers",
    }
    assert server.outputs == {
        "asks/ann": "fed.ann.asks",
        "asks/bob": "fed.bob.asks",
        "predictions": "fed.predictions",
    }
    assert (ann.party, server.party) == ("ann", None)


def test_a_reader_knows_in_whose_name_a_writer_may_speak() -> None:
    assert claimed("ann", "samples") is None, "users' programs have no keys"
    assert claimed("ann", "asks") == ("server", None), "a role without parties speaks for none"
    assert claimed("server", "answers/bob") == ("party", "bob"), "a party speaks for itself"
    assert claimed("ann", "notes") == ("party", "bob"), "the message says for whom it speaks"


def test_a_published_changelog_is_state_at_its_writer_and_a_table_at_its_readers() -> None:
    ann, server = table("ann").channels, table("server").channels
    assert (server.changelogs, server.published) == ({"model": "fed.model"}, ("model",))
    assert ann.tables["model"].signed
    assert "model" not in ann.inputs
    assert (ann.changelogs, ann.published, ann.lasting) == ({"state": "fed.ann.state"}, (), ("state",))
    assert (list(server.times), ann.times) == (["predictions"], {})


def test_topics_and_partitions_follow_from_the_rows_of_the_member() -> None:
    topics = {spec.name: spec for spec in table("ann").topics("fed.dead-letters")}
    assert set(topics) == {
        "columns",
        "fed.ann.answers",
        "fed.ann.asks",
        "fed.notes",
        "fed.model",
        "fed.ann.state",
        "fed.dead-letters",
    }
    assert [name for name, spec in topics.items() if spec.users] == ["columns"]
    assert topics["fed.ann.answers"].caution == "numbers in plain"
    assert (topics["fed.ann.asks"].partitions, topics["fed.ann.asks"].reason) == (3, "for a test")
    assert [name for name, spec in topics.items() if spec.compacted and spec.preferred] == [
        "fed.model",
        "fed.ann.state",
    ]
    assert topics["fed.dead-letters"] == TopicSpec("fed.dead-letters", None, compacted=False)
    assert table("ann").partitioned_like == {"fed.ann.answers": "columns", "fed.ann.state": "columns"}


def test_a_changelog_is_divided_as_what_the_member_reads_first() -> None:
    """Protects restored state: partition p of the changelog is that of partition p of the inputs, whoever may
    read it is told what it shows, and it is there before what is checked against it."""
    model = Channel(name="model", links={("server", "ann"): "fed.model"}, decode=repr, published=True)
    keyed = replace(ROWS[0], key_of=str.encode)
    rows = [model, replace(ROWS[1], like="")]
    of_server = ChannelTable("server", rows, PARTIES).with_changelog("fed.server", bytes.decode)
    of_ann = ChannelTable("ann", [keyed, ROWS[2]], PARTIES).with_changelog("fed.ann", bytes.decode)
    assert list(of_server.channels.changelogs.items()) == [("state", "fed.server"), ("model", "fed.model")]
    assert of_server.partitioned_like["fed.server"] == "fed.ann.answers"
    assert {spec.name: spec.caution for spec in of_server.topics("dead")}["fed.server"] == "numbers in plain"
    assert of_server.channels.dealt is None
    assert of_ann.partitioned_like == {"fed.ann": "columns"}
    dealt = of_ann.channels.dealt
    assert dealt is not None
    assert (dealt.client_of(b"bob"), dealt.key_of("bob")) == ("bob", b"bob")
    of_asked = ChannelTable("ann", [ROWS[2], keyed], PARTIES).with_changelog("fed.ann", bytes.decode)
    [spec] = [spec for spec in of_asked.topics("dead") if spec.name == "fed.ann"]
    assert (spec.partitions, spec.reason, of_asked.partitioned_like) == (3, "for a test", {})
    with pytest.raises(ValueError, match="channels of 'ann': no input says how many partitions"):
        ChannelTable("ann", [ROWS[4]], PARTIES).with_changelog("fed.ann", bytes.decode)


def test_what_members_send_one_another_is_known_in_the_whole_federation() -> None:
    between = {"fed.ann.answers", "fed.bob.answers", "fed.ann.asks", "fed.bob.asks", "fed.notes", "fed.model"}
    assert table("ann").between_members == table("server").between_members == between


def test_a_channel_with_a_reader_needs_a_decoder() -> None:
    with pytest.raises(ValueError, match="channel 'samples': decode is missing"):
        Channel(name="samples", links={(USER, "ann"): "columns"})


def test_names_stand_once_and_exist() -> None:
    with pytest.raises(ValueError, match="a name stands twice"):
        ChannelTable("ann", [ROWS[0], ROWS[0]])
    with pytest.raises(ValueError, match="channel 'state': like = 'samples' is none of state"):
        ChannelTable("ann", [ROWS[-1]])
