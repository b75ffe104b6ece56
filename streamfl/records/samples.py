"""The user's sample records: which field of a record means what, and how its bytes become a
:class:`Sample`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat, starmap
from math import hypot
from operator import attrgetter, gt
from typing import Annotated, Any, Literal, Self, overload

import msgspec
from pydantic import Field, model_validator

from streamfl.contract.channel_table import USER, Channel
from streamfl.contract.role import BadRecord, ConfigurationError, IgnoredRecord, NotYetReadable, Record
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.encoding.wire import LONGEST_KEY, MAXIMUM_BYTES
from streamfl.records.fields import (
    LABEL_RANGE,
    LARGEST_LABEL,
    LARGEST_NUMBER,
    LabelRange,
    name_in,
    scaled,
    struct_of,
)
from streamfl.records.formats import Format, format_of, without_value
from streamfl.records.input_reader import Numbers
from streamfl.records.inputs import (
    MOST_INPUTS,
    InputFields,
    InputSection,
    check_inputs,
    input_names,
    remembered_fields,
)
from streamfl.records.keys import key_reader, key_writer
from streamfl.records.paths import FieldPath
from streamfl.records.rekey import AssembledTopic
from streamfl.records.sample_fields import SampleFields

__all__ = ["Sample", "SampleColumns", "SampleReader", "SamplesSection"]


class SamplesSection(AssembledTopic):
    """The topic that samples come from and the names of its fields."""

    client: FieldPath | None = None
    """The field that names the client; left out: the record's key."""
    sample_id: FieldPath | None = None
    """The field that names the sample; left out: `<topic>-<partition>-<offset>`."""
    features: InputFields | None = None
    """The fields with the inputs, or the one field that holds them as a list. Left out: the names in
    federation.features. The same names in another order are refused."""
    inputs: Annotated[list[InputSection], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    """Tables `[[samples.inputs]]`, one for each field, in place of features. Use them if values are text,
    times or categories, or may be missing."""
    dimension: int | None = Field(default=None, ge=1, le=100_000)
    """Length of the list, if features names one field. Left out: as in federation.features. Not needed if
    features lists fields."""
    label: FieldPath | None = None
    """The field with the label, if the label comes with the sample. A record without it, or with null, is
    predicted and not learnt from."""
    label_as: Literal["number"] | None = None
    """`number`: text that is a number, such as "21.5", counts as a label. Left out: only a number does."""
    label_range: LabelRange = (0.0, 1.0)
    """The two label values that are scaled to 0 and 1. Predictions are in the label's own unit."""
    input_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Divisor of every number, so that a sample's norm is about one. Categories, truth values, and sines of
    times are not divided."""

    @model_validator(mode="after")
    def _inputs_are_named_once(self) -> Self:
        check_inputs(self.inputs, self.features, self.dimension)
        return self

    @property
    def input_names(self) -> list[str] | None:
        """What each number of a sample means; None: they come as one list, and have no names."""
        return input_names(self.inputs, self.features)

    @property
    def width(self) -> int | None:
        """How many numbers a sample has; None: not known."""
        names = self.input_names
        return self.dimension if names is None else len(names)

    def remembered(self) -> dict[str, Any]:
        return remembered_fields(self, super().remembered(), "client")


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A sample in the learner's units: features divided by ``input_norm``, the label so that ``label_range``
    is 0 to 1."""

    client: str
    id: str
    features: tuple[float, ...]
    label: float | None


class SampleColumns(Sequence[Sample]):
    """Samples as columns. A :class:`Sample` is made when somebody looks at one."""

    __slots__ = ("clients", "features", "ids", "labels")

    def __init__(
        self,
        clients: list[str],
        ids: list[str],
        features: list[tuple[float, ...]],
        labels: Sequence[float | None],
    ) -> None:
        self.clients, self.ids, self.features, self.labels = clients, ids, features, labels

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> SampleColumns:
        """These samples."""
        if isinstance(samples, SampleColumns):
            return samples
        return cls(
            [sample.client for sample in samples],
            [sample.id for sample in samples],
            [sample.features for sample in samples],
            [sample.label for sample in samples],
        )

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample, self.clients, self.ids, self.features, self.labels)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        return list(self)[index]


class SampleReader:
    """Decodes the records of one section.

    If every field is at the top level of a record, and every input is a number, records are decoded straight
    into a struct with exactly these fields; only a record that fails is decoded whole, to find the reason.
    All other records are decoded whole.

    low, span: a label y is ``low + y * span`` in its own unit.
    fills_means: whether the role fills in missing values of inputs with missing = "mean" or "last". They are
    NaN in a sample; ``means`` has the places of both, ``lasts`` of the latter.

    Raises ConfigurationError if the section does not say what the inputs are, gives a field two meanings, or
    asks for means that the role does not have.
    """

    def __init__(
        self, section: SamplesSection, format: Format | None = None, *, fills_means: bool = False
    ) -> None:
        format = format or format_of(section)
        self._format = format
        if section.features is None and section.inputs is None:
            raise ConfigurationError(
                'samples.features is missing: name the fields with the inputs, such as features = ["t1", '
                '"t2"], or the '
                'one field that holds them all as a list, such as features = "inputs" with dimension = 16; '
                "or write a table "
                "[[samples.inputs]] for each"
            )
        self._section = section
        self._fields = SampleFields(section, format)
        self.dimension = self._fields.dimension
        self.means, self.lasts = self._fields.means, self._fields.lasts
        if self.means and not fills_means:
            raise ConfigurationError(
                'samples.inputs: missing = "mean" or "last": this role knows no client\'s own values; '
                '"reject", "zero" and a '
                "number are possible"
            )
        low, high = section.label_range
        self.low, self.span = low, high - low
        self._norm = section.input_norm
        self._client_field, self._id_field = section.client, section.sample_id
        self._key = key_reader(section, "samples")
        decoded = self._fields.struct(format)
        self._decode = None if decoded is None else format.decoder(decoded)
        count = len(self._fields.inputs)
        getter: Callable[[Any], Any] = attrgetter(*(f"feature_{index}" for index in range(max(count, 1))))
        self._features: Callable[[Any], Numbers] = (
            getter if count != 1 else lambda content: (getter(content),)
        )

    def decode(self, record: Record) -> Sample:
        """The sample in ``record``.

        BadRecord with reason oversized, malformed, missing_field, not_numeric, not_finite, not_a_category,
        not_a_time, dimension or label.
        """
        value, key = record.value, record.key
        if value is None:
            raise without_value(self._format, "a sample")
        key_size = 0 if key is None else len(key)
        if len(value) + key_size > MAXIMUM_BYTES or key_size > LONGEST_KEY:
            raise _oversized(len(value), key_size)
        content = struct_of(self._decode, value)
        if content is None:
            client, identity, features, given = self._fields.read(value)
        else:
            client, identity, given = content.client, content.sample_id, content.label
            features = self._features(content)
            if self._norm != 1.0:
                features = tuple([number / self._norm for number in features])
            # One comparison for all: it is False for a NaN and for an infinity too.
            if len(features) != self.dimension or not sum(map(abs, features)) < LARGEST_NUMBER:
                self._fields.check(features)
        section = self._section
        label = None if given is None else scaled(given, section.label, section.label_range, LABEL_RANGE)
        client_field, id_field = self._client_field, self._id_field
        name = self._key(key) if client_field is None else name_in(client, client_field)
        if id_field is None:
            identifier = f"{record.topic}-{record.partition}-{record.offset}"
        elif id_field == client_field:
            identifier = name
        else:
            identifier = name_in(identity, id_field)
        return Sample(name, identifier, features, label)

    __call__ = decode

    def run(self, records: Sequence[Record]) -> SampleColumns | None:
        """The samples in these records of one partition; None if one of them may be refused, or records are
        decoded whole."""
        keys = [record.key for record in records]
        values = [value for record in records if (value := record.value) is not None]
        if self._decode is None or len(values) < len(records):
            return None
        key_size = max(map(len, filter(None, keys)), default=0)
        if key_size > LONGEST_KEY or max(map(len, values)) + key_size > MAXIMUM_BYTES:
            return None
        client_field, id_field, low, span = self._client_field, self._id_field, self.low, self.span
        try:
            contents = list(map(self._decode, values))
            names = self._names(keys, contents)
            if id_field is None:
                place = f"{records[0].topic}-{records[0].partition}-"
                identifiers = [f"{place}{record.offset}" for record in records]
            elif id_field == client_field:
                identifiers = names
            else:
                identifiers = [name_in(content.sample_id, id_field) for content in contents]
        except (*UNDECODABLE, BadRecord, IgnoredRecord, NotYetReadable):
            return None
        features = list(map(self._features, contents))
        if self._norm != 1.0:
            features = [tuple([number / self._norm for number in row]) for row in features]
        given = [content.label for content in contents]
        labels: Sequence[float | None]
        if None in given:
            labels = [None if label is None else (label - low) / span for label in given]
            known = [label for label in labels if label is not None]
        else:
            labels = known = [(label - low) / span for label in given]
        # Comparisons that are False for a NaN. No number is larger than a norm, and no sum of inputs than
        # their number times their norm.
        largest = LARGEST_NUMBER / (2 * self.dimension)
        if (
            {*map(len, features)} != {self.dimension}
            or not all(map(gt, repeat(largest), starmap(hypot, features)))
            or not hypot(*known) <= LARGEST_LABEL
        ):
            return None
        return SampleColumns(names, identifiers, features, labels)

    def _names(self, keys: Sequence[bytes | None], contents: Sequence[Any]) -> list[str]:
        field = self._client_field
        return (
            list(map(self._key, keys))
            if field is None
            else [name_in(content.client, field) for content in contents]
        )

    def channel(self, member: str) -> Channel:
        """The channel on which ``member`` gets the samples of clients."""
        return Channel(
            name="samples",
            links={(USER, member): self._section.topic},
            decode=self,
            client=attrgetter("client"),
            key_of=key_writer(self._section),
        )

    def name(self, record: Record) -> str:
        """The client's name in ``record``, whatever else is in it; BadRecord as in ``decode``."""
        if self._section.client is None:
            return self._key(record.key)
        if record.value is None or len(record.value) > MAXIMUM_BYTES:
            raise BadRecord("malformed", "a sample without a value, or too long")
        return name_in(self._fields.client(record.value), self._section.client)

    def original(self, prediction: float) -> float:
        """A prediction in the label's own unit.

        >>> from streamfl.records.samples import SamplesSection
        >>> section = SamplesSection(topic="t", features=["x"], label="y", label_range=(10, 30))
        >>> SampleReader(section).original(0.5)
        20.0
        """
        return self.low + prediction * self.span


def _oversized(value_size: int, key_size: int) -> BadRecord:
    if (size := value_size + key_size) > MAXIMUM_BYTES:
        return BadRecord(
            "oversized", f"a sample of {size} bytes with its key, at most {MAXIMUM_BYTES} are accepted"
        )
    return BadRecord("oversized", f"a sample's key of {key_size} bytes, at most {LONGEST_KEY} are accepted")
