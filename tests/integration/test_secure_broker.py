"""``deploy/security`` on a real broker: passwords, certificates, tokens and rights, with both Kafka
connectors."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import run_command
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from secure_broker import SECRETS, SECURITY, SecureBroker, secure_broker
from streamfl_process import run_streamfl, start_streamfl

from streamfl.cli.access import rights
from streamfl.cli.preflight import Configured, inspect_topics, read_configuration
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, BusUnavailable, Outgoing, Step, Subscription, TopicSpec, connect
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.rights import Guarded, Right

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.usefixtures("_refused_connections"),
]

BOTH = ("kafka", "librdkafka")
# By the file's name: the environment variables for either connector.
HIDDEN = {
    "server-mtls": {"kafka": "", "librdkafka": ""},
    "client-scram": {"kafka": "sasl_plain_password", "librdkafka": "sasl_password"},
    "client-oauth": {
        "kafka": "sasl_oauthbearer_client_secret",
        "librdkafka": "sasl_oauthbearer_client_secret",
    },
}
CLIENT, SERVER = "User:press-client", "User:press-server"
PATTERN = {"transactional-id": "prefixed"}


@pytest.fixture(scope="session", name="secure")
def _secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """For the whole run, because one of pytest's processes may be given parts of this module by and by."""
    with secure_broker(tmp_path_factory.mktemp("secure")) as running:
        yield running


@pytest.fixture(autouse=True)
def _nobody_has_rights(secure: SecureBroker) -> None:
    """Rights granted by an earlier test could hide a missing one, and it matters whether a user may write
    anything at all."""
    secure.take()


def file(connector: str, name: str) -> Path:
    return SECURITY / ("." if connector == "kafka" else connector) / f"{name}.toml"


def hidden(connector: str, name: str) -> dict[str, str]:
    """The option that is not in the file."""
    option = HIDDEN[name][connector]
    return {option: SECRETS["press-client"]} if option else {}


def opened(secure: SecureBroker, connector: str, name: str, **other: Any) -> Bus:
    """The bus of a file, with further options."""
    bus = tomllib.loads(secure.local(file(connector, name).read_text()))["bus"]
    options = {**bus["options"], **hidden(connector, name), "connect_timeout_seconds": 15, **other}
    return connect(bus["url"], {option: value for option, value in options.items() if value is not None})


def configured(secure: SecureBroker, connector: str, name: str, folder: Path, federation: str) -> Configured:
    """The role of a file, in another federation, with the hidden option."""
    text = secure.local(file(connector, name).read_text()).replace('"presses"', f'"{federation}"')
    more = "".join(f'{option} = "{value}"\n' for option, value in hidden(connector, name).items())
    path = folder / f"{name}.toml"
    path.write_text(
        text.replace('"readings"', f'"{federation}-readings"').replace(
            "[bus.options]\n", f"[bus.options]\n{more}"
        )
    )
    return read_configuration(path)


def make_topics(secure: SecureBroker, *roles: Configured) -> None:
    with closing(connect(secure.broker.url, secure.broker.options)) as bus:
        specs = {spec.name: spec for one in roles for spec in one.kind.topics(one.settings)}
        bus.create([replace(spec, partitions=spec.partitions or 2) for spec in specs.values()])


@pytest.mark.parametrize("connector", BOTH)
def test_a_federation_learns_through_every_door(secure: SecureBroker, connector: str, tmp_path: Path) -> None:
    """Protects users who begin with these files: a server with a certificate, a client worker with a password
    and one with tokens are admitted, have exactly the printed rights, share the partitions, and predict every
    sample.
    """
    name = f"presses-{connector}"
    server, scram, oauth = (configured(secure, connector, one, tmp_path, name) for one in HIDDEN)
    make_topics(secure, server, scram)
    with ExitStack() as held:
        buses = [held.enter_context(closing(one.connect())) for one in (server, scram, oauth)]
        needed = [rights(server, SERVER), rights(scram, CLIENT), rights(oauth, CLIENT)]
        for bus, own in zip(buses, needed, strict=True):
            assert isinstance(bus, Guarded)
            assert bus.missing_rights(own) == own
        secure.allow([*needed[0], *needed[1]])
        for bus, own in zip(buses, needed, strict=True):
            assert cast(Guarded, bus).missing_rights(own) == []
        stop = threading.Event()
        workers = [
            build_worker(one.settings, bus) for one, bus in zip((server, scram, oauth), buses, strict=True)
        ]
        threads = [threading.Thread(target=worker.run, args=(stop,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            admin = held.enter_context(closing(connect(secure.broker.url, secure.broker.options)))
            deadline = time.monotonic() + 60
            while any(worker.health.without_partitions for worker in workers):
                assert all(thread.is_alive() for thread in threads)
                assert time.monotonic() < deadline
                time.sleep(0.1)
            samples = [
                json.dumps(
                    {"press": f"press-{number}", "temperature": 0.1, "pressure": 0.2, "thickness": 0.5}
                ).encode()
                for number in range(8)
            ]
            admin.write(
                [
                    Outgoing(f"{name}-readings", f"{n}".encode(), sample, n % 2)
                    for n, sample in enumerate(samples)
                ]
            )
            while len(seen := list(admin.read(f"{name}.predictions"))) < len(samples) or not list(
                admin.read(f"{name}.model")
            ):
                assert all(thread.is_alive() for thread in threads)
                assert time.monotonic() < deadline, f"{len(seen)} predictions"
                time.sleep(0.2)
            assert len(seen) == len(samples)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize("connector", BOTH)
def test_a_client_that_writes_the_model_is_refused(
    secure: SecureBroker, connector: str, elsewhere: bool
) -> None:
    """Protects the model from a client that was taken over: the broker refuses it, and the client names the
    missing right instead of trying again. Also if it may not write anything else, so that its producer is
    refused before its record.
    """
    model, own = f"guarded-{connector}-{elsewhere}.model", f"guarded-{connector}-{elsewhere}.updates"
    with closing(connect(secure.broker.url, secure.broker.options)) as admin, ExitStack() as held:
        admin.create([TopicSpec(model, 1, True), TopicSpec(own, 1, False)])
        secure.allow([Right(CLIENT, "topic", model, "literal", ("Read", "DescribeConfigs"))])
        if elsewhere:
            secure.allow([Right(CLIENT, "topic", own, "literal", ("Write", "DescribeConfigs"))])
        bus = held.enter_context(closing(opened(secure, connector, "client-scram")))
        deadline = time.monotonic() + 10
        while bus.describe([model])[model].error is not None:
            assert time.monotonic() < deadline
        session = held.enter_context(closing(bus.session(Subscription(own, (), guarantee="at_least_once"))))
        writing = partial(bus.write, [Outgoing(model, b"kernel", b"poison")])
        committing = partial(session.commit, Step(outputs=[Outgoing(model, b"kernel", b"poison")]))
        for attempt in (writing, committing, writing):
            with pytest.raises(
                ConfigurationError, match=rf"not authorised: .*Write .*on topic '{model}'"
            ) as caught:
                attempt()
            assert ("no topic at all" in str(caught.value)) is not elsewhere
        if elsewhere:
            bus.write([Outgoing(own, None, b"update")])
        assert list(admin.read(model)) == []


# The requests of a commit, the message if one is refused, and the missing right. Only Describe is left for a
# topic.
REQUESTS = {
    "InitProducerId": (
        "Write on transactional ids with the prefix '{name}:'",
        "transactional-id",
        "{name}:",
        "Write",
    ),
    "AddPartitionsToTxn": ("Write .*on topic '{name}-updates'", "topic", "{name}-updates", "Write"),
    "AddOffsetsToTxn": ("Read on group '{name}'", "group", "{name}", "Read"),
    "TxnOffsetCommit": ("Read .*on topic '{name}-samples'", "topic", "{name}-samples", "Read"),
}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("connector", BOTH)
def test_every_request_of_a_commit_names_the_right_that_it_lacks(
    secure: SecureBroker, connector: str, guarantee: str
) -> None:
    """Protects the operator who revoked or forgot a right: whichever request is refused, the worker stops and
    names the right. The libraries report some refusals without a name, and some end a producer.
    """
    name = f"lacking-{connector}-{guarantee}"
    samples, updates = f"{name}-samples", f"{name}-updates"
    requests = {
        request: (
            said.format(name=name),
            Right(CLIENT, kind, of.format(name=name), PATTERN.get(kind, "literal"), (operation,)),
        )
        for request, (said, kind, of, operation) in REQUESTS.items()
    }
    seen = [
        Right(CLIENT, "topic", topic, "literal", ("Describe", "DescribeConfigs"))
        for topic in (samples, updates)
    ]
    secure.allow([*seen, *(right for _, right in requests.values())])
    step = Step({(samples, 0): 1}, [Outgoing(updates, None, b"x")])
    with closing(connect(secure.broker.url, secure.broker.options)) as admin, ExitStack() as held:
        admin.create([TopicSpec(samples, 1, False), TopicSpec(updates, 1, False)])
        admin.write([Outgoing(samples, None, b"v")])
        bus = held.enter_context(closing(opened(secure, connector, "client-scram")))
        subscription = Subscription(name, (samples,), guarantee=guarantee)
        for request, (said, right) in requests.items():
            if guarantee == "at_least_once" and right.resource == "transactional-id":
                continue
            with closing(bus.session(subscription)) as session:
                deadline = time.monotonic() + 30
                while not session.poll(0.2, 10).records:
                    assert time.monotonic() < deadline
                secure.take(right)
                secure.allow(seen)
                with pytest.raises(ConfigurationError, match=f"not authorised: .*{said}"):
                    session.commit(step)
                if request == "InitProducerId":
                    with pytest.raises(ConfigurationError, match=f"not authorised: .*{said}"):
                        bus.session(subscription)
                # Before it closes: the group waits for a member that may not leave.
                secure.allow([right])


def by_administrator(
    secure: SecureBroker,
    connector: str,
    client: Configured,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The administrator creates a role's topics from the role's own file, as docs/cluster.md says."""
    files = ("CERTFILE", "KEYFILE") if connector == "kafka" else ("CERTIFICATE_LOCATION", "KEY_LOCATION")
    made = {
        "URL": secure.broker.url if connector == "kafka" else f"kafka+{connector}://{secure.broker.address}",
        "OPTIONS__SECURITY_PROTOCOL": "SSL",
        **{
            f"OPTIONS__SSL_{name}": str(secure.folder / f"admin.{ending}")
            for name, ending in zip(files, ("pem", "key"), strict=True)
        },
    }
    with monkeypatch.context() as patch:
        for name, value in made.items():
            patch.setenv(f"STREAMFL_BUS__{name}", value)
        code, out, error = run_command(patch, capsys, "topics", client.path, "--create-inputs")
        assert code == 0, out + error


def test_the_administrators_command_takes_a_file_for_librdkafka(
    secure: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who runs a role with librdkafka: the only command of the page had names of the other client,
    and failed on the role's file."""
    connector = "librdkafka"
    client = configured(secure, connector, "client-scram", tmp_path, "by-administrator")
    by_administrator(secure, connector, client, monkeypatch, capsys)
    with closing(connect(secure.broker.url, secure.broker.options)) as admin:
        assert "by-administrator.updates" in admin.describe(["by-administrator.updates"])


def test_a_worker_with_anothers_rights_stops_and_says_what_is_missing(
    secure: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the operator who mixed up two principals: exit code 2 and the right's name, no traceback, no
    endless retries. ``check`` prints exactly the missing rights, as arguments of kafka-acls.sh.
    """
    client = configured(secure, "kafka", "client-scram", tmp_path, "mixed")
    server = configured(secure, "kafka", "server-mtls", tmp_path, "mixed")
    by_administrator(secure, "kafka", client, monkeypatch, capsys)
    text = (
        client.path.read_text()
        .replace("press-client", "nobody")
        .replace(SECRETS["press-client"], SECRETS["nobody"])
    )
    client.path.write_text(text)
    own = rights(client, "User:nobody")
    updates = next(right for right in own if right.name == "mixed.updates")
    secure.allow(
        [right for right in own if right is not updates]
        + [replace(updates, operations=("DescribeConfigs", "Read"))]
    )

    code, out, error = run_command(monkeypatch, capsys, "check", client.path, "--format", "json")
    assert code == 4, out + error
    [found] = [one for one in json.loads(out)["checks"] if one["check"].startswith("rights")]
    assert found["check"] == "rights on topic mixed.updates"
    assert found["detail"] == "missing: Write"
    assert found["remedy"].endswith(
        "--add --allow-principal User:NAME --operation Write --topic mixed.updates"
    )
    # The client's listener and name, with the server's role.
    bus, role = text[text.index("[bus]") : text.index("[role]")], server.path.read_text()
    server.path.write_text(role[: role.index("[bus]")] + bus + role[role.index("[role]") :])
    ran = run_streamfl("run", server.path)
    assert ran.returncode == 2, ran.stderr
    assert "an ACL must allow" in ran.stderr
    assert "mixed." in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("connector", BOTH)
def test_a_topic_whose_configuration_is_hidden_is_told_by_the_right_that_lacks(
    secure: SecureBroker, connector: str, tmp_path: Path
) -> None:
    """Protects the operator who left out DescribeConfigs: a worker names the right. It may not say that
    compaction is off, which whoever reads that would turn on or off, and may not end with a traceback at its
    first commit. Users' own topics are read without it."""
    client = configured(secure, connector, "client-scram", tmp_path, f"hidden-{connector}")
    make_topics(secure, client)
    needed = rights(client, CLIENT)
    state, told = f"hidden-{connector}.pofmkl-client.state", f"hidden-{connector}.predictions"
    without = [
        replace(right, operations=tuple(one for one in right.operations if one != "DescribeConfigs"))
        for right in needed
    ]
    secure.allow(without)
    with closing(opened(secure, connector, "client-scram")) as bus:
        found = bus.describe([state, told])
        assert {one.error for one in found.values()} == {None}
        assert all("DescribeConfigs" in (one.hidden or "") for one in found.values())
        with pytest.raises(ConfigurationError, match=f"DescribeConfigs on topic '{told}'"):
            bus.write([Outgoing(told, None, b"{}")])
        by_name = {one.spec.name: one for one in inspect_topics(client, bus)}
        assert "DescribeConfigs" in (by_name[state].problem or "")
        assert by_name[state].cleanup is None
        assert by_name[f"hidden-{connector}-readings"].problem is None
        secure.allow(needed)
        deadline = time.monotonic() + 30
        while bus.describe([state])[state].hidden is not None:
            assert time.monotonic() < deadline
        bus.write([Outgoing(told, None, b"{}")])


@pytest.mark.parametrize("connector", BOTH)
def test_a_worker_warns_at_its_start_of_a_right_that_it_needs_later(
    secure: SecureBroker, connector: str, tmp_path: Path
) -> None:
    """Protects from a worker that is green for months and does not come back: without state it needs no right
    to read its changelog."""
    client = configured(secure, connector, "client-scram", tmp_path, f"later-{connector}")
    make_topics(secure, client)
    needed, state = rights(client, CLIENT), f"later-{connector}.pofmkl-client.state"
    secure.allow([right for right in needed if right.name != state])
    secure.allow([Right(CLIENT, "topic", state, "literal", ("Write", "DescribeConfigs"))])
    with start_streamfl("run", client.path, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        said = []
        for line in worker.stderr:
            said.append(line)
            if " running " in line:
                break
        worker.send_signal(signal.SIGTERM)
    [warned] = [line for line in said if "a right on topic" in line]
    assert state in warned
    assert "missing=Read" in warned


def _mistakes() -> list[Any]:
    authority = {"kafka": "ssl_cafile", "librdkafka": "ssl.ca.location"}
    cases: list[tuple[str, dict[str, dict[str, Any]], str]] = [
        (
            "client-scram",
            {one: {HIDDEN["client-scram"][one]: "wrong"} for one in BOTH},
            "(?i)authentication failed",
        ),
        (
            "client-scram",
            {one: {authority[one]: "/etc/streamfl/stranger.pem"} for one in BOTH},
            "(?i)certificate.?verify.?failed",
        ),
        (
            "client-oauth",
            {one: {HIDDEN["client-oauth"][one]: "wrong"} for one in BOTH},
            "token endpoint .* 401 invalid_client",
        ),
        (
            "server-mtls",
            {
                "kafka": {"ssl_certfile": None, "ssl_keyfile": None},
                "librdkafka": {"ssl.certificate.location": None, "ssl.key.location": None},
            },
            "the broker requires a client certificate",
        ),
    ]
    return [
        pytest.param(connector, name, other[connector], message, id=f"{connector}-{name}-{number}")
        for number, (name, other, message) in enumerate(cases)
        for connector in BOTH
    ]


@pytest.mark.parametrize(("connector", "name", "other", "message"), _mistakes())
def test_a_mistake_at_the_door_is_named(
    secure: SecureBroker, connector: str, name: str, other: dict[str, Any], message: str
) -> None:
    """Protects the operator's time: a wrong password, authority or secret, or a missing certificate, is
    reported as an error in the settings, and not as an outage.
    """
    here = {option: value if value is None else secure.local(value) for option, value in other.items()}
    with pytest.raises(ConfigurationError, match=message) as caught:
        opened(secure, connector, name, **{"connect_timeout_seconds": 2, **here}).close()
    assert "wrong" not in str(caught.value)
    assert SECRETS["press-client"] not in str(caught.value)


@pytest.mark.parametrize("connector", BOTH)
def test_a_token_that_is_over_or_forged_is_refused(
    secure: SecureBroker, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the token listener: Kafka's documented example accepts a token with any signature (4.1); this
    file does not. An expired token is reported without a request to the broker.
    """
    monkeypatch.setattr(secure.issuer, "lasting", -3600.0)
    with pytest.raises(ConfigurationError, match="expired 3600 s ago"):
        opened(secure, connector, "client-oauth")
    monkeypatch.setattr(secure.issuer, "lasting", 300.0)
    monkeypatch.setattr(secure.issuer, "_key", rsa.generate_private_key(65537, 2048))
    with pytest.raises(ConfigurationError, match="invalid_token"):
        opened(secure, connector, "client-oauth", connect_timeout_seconds=2)


def test_tokens_are_renewed_before_they_end(secure: SecureBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects workers that run longer than a token lasts: sessions of both connectors survive several tokens
    without a failure."""
    for kind, name, operation in (
        (ResourceType.TOPIC, "renewed", ACLOperation.ALL),
        (ResourceType.GROUP, "renewed", ACLOperation.ALL),
        (ResourceType.TRANSACTIONAL_ID, "renewed", ACLOperation.ALL),
    ):
        pattern = ResourcePattern(kind, name, ACLResourcePatternType.PREFIXED)
        secure.admin.create_acls([ACL(CLIENT, "*", operation, ACLPermissionType.ALLOW, pattern)])
    # A broker refuses a new login within a second (KIP-368). So a fifth of a token's time must be longer, on
    # a busy machine too.
    monkeypatch.setattr(secure.issuer, "lasting", lasting := 8.0)
    with ExitStack() as held:
        full = held.enter_context(closing(connect(secure.broker.url, secure.broker.options)))
        sessions, topics = [], [f"renewed-{connector}" for connector in BOTH]
        full.create([TopicSpec(topic, 1, False) for topic in topics])
        for connector, topic in zip(BOTH, topics, strict=True):
            bus = held.enter_context(closing(opened(secure, connector, "client-oauth")))
            sessions.append(held.enter_context(closing(bus.session(Subscription(topic, (topic,))))))
        given = secure.issuer.given
        begun, sent, seen = time.monotonic(), 0, [0, 0]
        while time.monotonic() - begun < 2 * lasting or seen != [sent, sent]:
            assert time.monotonic() - begun < 6 * lasting, (sent, seen)
            if time.monotonic() - begun < 2 * lasting:
                full.write([Outgoing(topic, None, b"v", 0) for topic in topics])
                sent += 1
            for number, (session, topic) in enumerate(zip(sessions, topics, strict=True)):
                if records := session.poll(0.5, 100).records:
                    seen[number] += len(records)
                    session.commit(Step({(topic, 0): records[-1].offset + 1}))
        assert secure.issuer.given - given >= 3


@pytest.mark.parametrize("connector", BOTH)
def test_a_renewed_certificate_counts_without_a_restart(
    secure: SecureBroker, connector: str, tmp_path: Path
) -> None:
    """Protects workers whose certificates last for days: one that is put in the place of the old one counts
    for each connection from then on. With the old one a worker would wait for ever once it is over."""
    name, own, key = f"renewed-file-{connector}", tmp_path / "own.pem", tmp_path / "own.key"

    def bring(member: str) -> None:
        for place, end in ((own, "pem"), (key, "key")):
            shutil.copy(secure.folder / f"{member}.{end}", tmp_path / "next")
            (tmp_path / "next").replace(place)

    bring("press-server")
    options = {
        "kafka": {"ssl_certfile": str(own), "ssl_keyfile": str(key)},
        "librdkafka": {"ssl.certificate.location": str(own), "ssl.key.location": str(key)},
    }[connector]
    with closing(connect(secure.broker.url, secure.broker.options)) as admin, ExitStack() as held:
        admin.create([TopicSpec(name, 1, False)])
        needed = [
            Right(SERVER, "topic", name, "literal", ("Read", "DescribeConfigs")),
            Right(SERVER, "group", name, "literal", ("Read",)),
            Right(SERVER, "transactional-id", f"{name}:", "prefixed", ("Write",)),
        ]
        secure.allow([*needed, *(replace(right, principal="User:stranger") for right in needed)])
        bus = held.enter_context(closing(opened(secure, connector, "server-mtls", **options)))
        session = bus.session(Subscription(name, (name,)))
        session.poll(0.1, 100)
        bring("stranger")
        deadline = time.monotonic() + 60
        renewed = connector == "kafka"
        while not renewed:
            assert time.monotonic() < deadline
            try:
                session.poll(0.2, 100)
            except BusUnavailable as told:
                renewed = "renewed" in str(told)
        session.close()
        # Whoever connects with the old one from now on reads nothing. The connection that describes topics is
        # an old one.
        secure.take(needed[0])
        secure.allow([replace(needed[0], operations=("Describe", "DescribeConfigs"))])
        admin.write([Outgoing(name, None, b"v", 0)])
        session = held.enter_context(closing(bus.session(Subscription(name, (name,)))))
        while not session.poll(0.2, 100).records:
            assert time.monotonic() < deadline
