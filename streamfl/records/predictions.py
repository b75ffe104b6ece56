"""The format of predictions for the user's consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from pydantic import Field

from streamfl.configuration.settings import Section
from streamfl.records.formats import written_as
from streamfl.records.topic import RegistrySection

__all__ = ["PredictionsSection", "SamplePrediction", "prediction_encoder"]


class PredictionsSection(Section):
    """The format of predictions. Each has the key of the record that it predicts."""

    format: Literal["json", "msgpack", "avro"] = "json"
    """Format of predictions. `avro` needs [registry]: streamfl registers a schema under
    `<federation>.predictions-value`, and writes its number before each prediction."""
    registry: RegistrySection | None = Field(default=None)
    """The schema registry of the predictions; left out: [registry]."""

    def remembered(self) -> dict[str, Any]:
        # How predictions are written changes nothing that was learnt.
        return {}

    @property
    def schema_file(self) -> None:
        """None: readers of predictions find their schema in the registry, or need none."""
        return None

    @property
    def message(self) -> None:
        """See ``schema_file``."""
        return None

    @property
    def columns(self) -> None:
        """See ``schema_file``."""
        return None

    @property
    def delimiter(self) -> None:
        """See ``schema_file``."""
        return None

    @property
    def decimal(self) -> None:
        """See ``schema_file``."""
        return None

    @property
    def check_schema(self) -> None:
        """See ``schema_file``."""
        return None


class SamplePrediction(msgspec.Struct, gc=False):
    """What users read: one for every sample of a client. A system may add fields in a subclass.

    prediction: in the label's own unit.
    """

    client: str
    sample: str
    prediction: float


def prediction_encoder(
    section: PredictionsSection, topic: str, kind: type[msgspec.Struct]
) -> Callable[[Any], bytes]:
    """A function from predictions, each a ``kind``, to the bytes of records of ``topic``.

    It raises NotYetReadable while the registry does not answer. ConfigurationError if the format lacks
    something.
    """
    return written_as(section, "predictions", topic, kind).encode
