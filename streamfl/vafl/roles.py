"""The roles of VAFL, as ``[role] kind`` names them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from streamfl.role import Channels, ConfigurationError, Input, PeerError, Receiver, Record, Sender, TopicSpec
from streamfl.role_kind import RoleKind
from streamfl.samples import Label, LabelReader, Sample, SampleReader
from streamfl.secrets import read_secret
from streamfl.vafl.config import COORDINATOR, PARTY, VaflSettings
from streamfl.vafl.coordinator import Alignment, HeadSteps, VaflCoordinator
from streamfl.vafl.heads import LOGISTIC, SQUARE, Head, NetworkHead, OutputLoss, SumHead, softmax_loss
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply
from streamfl.vafl.networks import DenseNetwork, Differentiable
from streamfl.vafl.party import PartySteps, VaflParty
from streamfl.vafl.privacy import BoundedOutput, Mechanism
from streamfl.vafl.remembered import coordinator_made_with, party_made_with
from streamfl.vafl.torch_model import NOT_INSTALLED
from streamfl.vertical import EntityLabelsSection, EntitySamplesSection
from streamfl.wire import ROOM, fingerprint

__all__ = ["ROLES", "embedding_function", "head", "output_loss"]

_SMALL_SEGMENTS = {"segment.bytes": "67108864"}
# Of a party's network or a head: with what an optimiser keeps, some gigabytes.
MOST_PARAMETERS = 2**27


def embedding_function(settings: VaflSettings, inputs: int) -> Differentiable:
    """h_m of this party."""
    section, privacy = settings.embedding, settings.privacy
    function: Differentiable
    if section.model is not None:
        function = _own_model(section.model, inputs, settings)
    else:
        function = _affordable(
            DenseNetwork(
                [inputs, *section.hidden, settings.federation.embedding_size],
                section.activation,
                bias=section.bias,
                dtype=_dtype(settings),
                perturbation=privacy.hidden_noise,
            ),
            "samples.features, embedding.hidden and federation.embedding_size",
        )
    if privacy.embedding_norm is None:
        return function
    return BoundedOutput(function, privacy.embedding_norm, privacy.normalise)


def _own_model(location: str, inputs: int, settings: VaflSettings) -> Differentiable:
    module, _, attribute = location.partition(":")
    try:
        make = getattr(importlib.import_module(module), attribute)
        function: Differentiable = make(inputs, settings.federation.embedding_size, settings.federation.precision)
        _try(function, inputs, settings)
    except Exception as error:
        # It is the operator's own code, and may fail in any way.
        text = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            text = NOT_INSTALLED
        raise ConfigurationError(f"embedding.model = {location!r}: {text}") from None
    return function


def _try(function: Differentiable, inputs: int, settings: VaflSettings) -> None:
    """Call all of an operator's model that a party will call; ConfigurationError says what does not fit."""

    def fits(name: str, found: Any, expected: tuple[int, ...]) -> None:
        if found.shape != expected:
            raise ConfigurationError(f"{name} of the shape {found.shape}, {expected} is expected")

    size, dtype, units = settings.federation.embedding_size, _dtype(settings), function.noise_units
    parameters = function.initial(0)
    if parameters.shape != (function.size,) or parameters.dtype != dtype:
        raise ConfigurationError(
            f"its first parameters are {parameters.dtype} of shape {parameters.shape}, "
            f"{settings.federation.precision} of shape {(function.size,)} is expected"
        )
    done = function.forward(parameters, np.zeros((2, inputs), dtype), np.zeros((2, units)) if units else None)
    fits("forward of two rows gives outputs", done.outputs, (2, size))
    cotangents = np.zeros((2, size), dtype)
    fits("backward gives a gradient", function.backward(parameters, done, cotangents), parameters.shape)
    if settings.privacy.gradient_noise is not None:
        fits("backward_each gives a gradient", function.backward_each(parameters, done, cotangents, 1.0), parameters.shape)


def _affordable(network: DenseNetwork, keys: str) -> DenseNetwork:
    if network.size > MOST_PARAMETERS:
        raise ConfigurationError(f"{keys}: they make {network.size:,} parameters, at most {MOST_PARAMETERS:,} are possible")
    return network


def head(settings: VaflSettings) -> Head:
    """What the coordinator makes of the embeddings."""
    section, federation = settings.head, settings.federation
    if section.kind == "sum":
        return SumHead(_dtype(settings))
    sizes = [len(federation.parties) * federation.embedding_size, *section.hidden, settings.outputs]
    network = DenseNetwork(sizes, section.activation, dtype=_dtype(settings))
    return NetworkHead(_affordable(network, "federation.parties, federation.embedding_size, head.hidden and learning.classes"))


def output_loss(settings: VaflSettings) -> OutputLoss:
    """The loss of the head's outputs."""
    if settings.learning.loss == "softmax":
        return softmax_loss(settings.outputs)
    return SQUARE if settings.learning.loss == "square" else LOGISTIC


def _dtype(settings: VaflSettings) -> Any:
    return np.float64 if settings.federation.precision == "float64" else np.float32


def _fingerprint(settings: VaflSettings) -> int:
    federation = settings.federation
    return fingerprint(
        "vafl", federation.name, federation.seed, tuple(federation.parties), federation.embedding_size, federation.precision
    )


def _samples(settings: VaflSettings) -> EntitySamplesSection:
    if settings.samples is None:
        raise ConfigurationError("the section [samples] is missing: a vafl-party has to know its samples' topic and fields")
    return settings.samples


def _labels(settings: VaflSettings) -> EntityLabelsSection:
    if settings.labels is None:
        raise ConfigurationError("the section [labels] is missing: a vafl-coordinator has to know its labels' topic and field")
    return settings.labels


def _party(settings: VaflSettings) -> str:
    if settings.party is None:
        raise ConfigurationError("the section [party] is missing: say which of federation.parties this is")
    return settings.party.name


def _secret(settings: VaflSettings) -> str:
    path = settings.privacy.secret_file
    if path is None:
        return ""
    return read_secret(path, "privacy.secret_file").hex()


def _mechanism(settings: VaflSettings) -> Mechanism | None:
    privacy = settings.privacy
    if privacy.embedding_norm is None or privacy.embedding_noise is None:
        return None
    return Mechanism(
        embedding_norm=privacy.embedding_norm,
        embedding_noise=privacy.embedding_noise,
        gradient_norm=privacy.gradient_norm,
        gradient_noise=privacy.gradient_noise,
        budget=privacy.budget_mu,
        secret=_secret(settings),
    )


def _build_party(settings: VaflSettings) -> VaflParty:
    learning, alignment = settings.learning, settings.alignment
    inputs = SampleReader(_samples(settings).samples).dimension
    _check_remembered(settings, inputs)
    return VaflParty(
        name=_party(settings),
        function=embedding_function(settings, inputs),
        inputs=inputs,
        embedding_size=settings.federation.embedding_size,
        steps=PartySteps(
            settings.optimiser, learning.learning_rate, learning.batch_size, learning.in_flight, learning.regularisation
        ),
        seed=settings.federation.seed,
        fingerprint=_fingerprint(settings),
        expiry=alignment.expiry_seconds,
        limit=alignment.limit,
        mechanism=_mechanism(settings),
        without_noise=settings.privacy.without_noise,
        requests=settings.alignment.requests,
        ledger_limit=settings.privacy.ledger_limit,
        patience=alignment.patience_seconds,
    )


def _check_remembered(settings: VaflSettings, inputs: int) -> None:
    """A party remembers an entity's features and its gradient in one record until it has taken its step."""
    size, number = settings.federation.embedding_size, settings.number_bytes
    if (inputs + size) * number > ROOM:
        narrower = ', or set federation.precision = "float32"' if number == 8 else ""
        raise ConfigurationError(
            f"samples.features: the party remembers an entity's {inputs:,} inputs and a gradient of federation.embedding_size = "
            f"{size:,} numbers in one record, {(inputs + size) * number:,} bytes of {ROOM:,}: at most {ROOM // number - size:,} "
            f"inputs are possible; name fewer, or lower federation.embedding_size{narrower}"
        )


def _build_coordinator(settings: VaflSettings) -> VaflCoordinator:
    learning, alignment = settings.learning, settings.alignment
    low, high = _labels(settings).label_range
    return VaflCoordinator(
        parties=settings.federation.parties,
        embedding_size=settings.federation.embedding_size,
        head=head(settings),
        loss=output_loss(settings),
        steps=HeadSteps(settings.optimiser, learning.learning_rate, learning.batch_size, learning.regularisation),
        alignment=Alignment(
            quorum=alignment.quorum,
            wait_for=learning.wait_for,
            max_staleness=learning.max_staleness,
            reply_seconds=alignment.reply_seconds,
            revise=alignment.revise,
            expiry=alignment.expiry_seconds,
            limit=alignment.limit,
            keep=alignment.keep,
        ),
        seed=settings.federation.seed,
        fingerprint=_fingerprint(settings),
        dtype=_dtype(settings),
        encode_prediction=msgspec.json.Encoder().encode,
        original=lambda value: low + value * (high - low),
        gradient_noise=settings.privacy.reply_noise,
        noise_secret=_secret(settings),
        patience=alignment.patience_seconds,
    )


def _entity(sample: Sample) -> str:
    return sample.client


def _decode_reply(record: Record) -> Reply:
    return REPLY.decode(record.value)


def _decode_embedding(record: Record) -> Embedding:
    return EMBEDDING.decode(record.value)


def _decode_label(settings: VaflSettings) -> Callable[[Record], Label]:
    labels = _labels(settings)
    # A class is not a number within a range: the coordinator knows how many there are.
    square = settings.learning.loss == "square"
    decode = LabelReader(labels, labels.label_range if square else None, "labels.label_range").decode
    if not (square and settings.privacy.reply_noise):
        return decode

    def decode_within_range(record: Record) -> Label:
        label = decode(record)
        if not 0 <= label.label <= 1:
            raise PeerError(
                "label",
                f"{labels.label} is outside labels.label_range = {list(labels.label_range)}, and privacy.reply_noise hides labels "
                "only within it: give the range of all that can come",
            )
        return label

    return decode_within_range


def _party_channels(settings: VaflSettings) -> Channels:
    own, samples = settings.member, _samples(settings)
    # The ledger of an entity is kept in its partition: in another one it would be shown as often once more.
    checked = settings.privacy.embedding_norm is not None and samples.keyed_by_entity
    return Channels(
        inputs={
            "samples": Input(samples.topic, SampleReader(samples.samples).decode, keyed_by=_entity if checked else None),
            "gradients": Input(f"{own}.gradients", _decode_reply, makes_room=True, sender=Sender(COORDINATOR, _for_nobody)),
        },
        outputs={"embeddings": f"{own}.embeddings"},
        changelogs={"state": f"{own}.state"},
        receivers={"embeddings": Receiver(COORDINATOR)},
        party=_party(settings),
    )


def _for(party: str) -> Callable[[Any], str]:
    return lambda _message: party


def _for_nobody(_message: Any) -> None:
    """The coordinator speaks for itself."""


def _coordinator_channels(settings: VaflSettings) -> Channels:
    name, labels = settings.federation.name, _labels(settings)
    parties = settings.federation.parties
    return Channels(
        inputs={
            "labels": Input(labels.topic, _decode_label(settings)),
            **{
                f"embeddings/{party}": Input(f"{name}.{party}.embeddings", _decode_embedding, sender=Sender(PARTY, _for(party)))
                for party in parties
            },
        },
        outputs={
            "predictions": f"{name}.predictions",
            **{f"gradients/{party}": f"{name}.{party}.gradients" for party in parties},
        },
        changelogs={"state": f"{settings.member}.state"},
        receivers={f"gradients/{party}": Receiver(PARTY, party) for party in parties},
    )


def _between(settings: VaflSettings, party: str) -> list[str]:
    return [f"{settings.federation.name}.{party}.{direction}" for direction in ("embeddings", "gradients")]


def _party_topics(settings: VaflSettings) -> list[TopicSpec]:
    return [
        TopicSpec(_samples(settings).topic, None, compacted=False, users=True),
        *(TopicSpec(topic, None, compacted=False) for topic in _between(settings, _party(settings))),
        TopicSpec(f"{settings.member}.state", None, compacted=True, preferred=_SMALL_SEGMENTS),
        TopicSpec(settings.dead_letters, None, compacted=False),
    ]


def _coordinator_topics(settings: VaflSettings) -> list[TopicSpec]:
    return [
        TopicSpec(_labels(settings).topic, None, compacted=False, users=True),
        *(TopicSpec(topic, None, compacted=False) for party in settings.federation.parties for topic in _between(settings, party)),
        TopicSpec(f"{settings.federation.name}.predictions", None, compacted=False),
        TopicSpec(f"{settings.member}.state", None, compacted=True, preferred=_SMALL_SEGMENTS),
        TopicSpec(settings.dead_letters, None, compacted=False),
    ]


def _partitioned_like(settings: VaflSettings) -> dict[str, str]:
    """An entity's records of both directions, its label and what is remembered of it lie in partitions of the same number."""
    if settings.role.kind == PARTY:
        like, parties = _samples(settings).topic, [_party(settings)]
    else:
        like, parties = _labels(settings).topic, settings.federation.parties
    topics = [topic for party in parties for topic in _between(settings, party)]
    return dict.fromkeys((*topics, f"{settings.member}.state"), like)


_kind = partial(RoleKind[VaflSettings], settings=VaflSettings, partitioned_like=_partitioned_like)

ROLES: dict[str, RoleKind[Any]] = {
    kind.name: kind
    for kind in (
        _kind(name=PARTY, build=_build_party, channels=_party_channels, topics=_party_topics, made_with=party_made_with),
        _kind(
            name=COORDINATOR,
            build=_build_coordinator,
            channels=_coordinator_channels,
            topics=_coordinator_topics,
            made_with=coordinator_made_with,
        ),
    )
}
