"""What the roles send and remember. Others may write to these topics: hence the bounds."""

from typing import Annotated

import msgspec

from streamfl.encoding.wire import Codec, Count, Name, Version
from streamfl.records.fields import LARGEST_LABEL
from streamfl.records.predictions import SamplePrediction

# samples.label_range becomes 0 to 1. A label may lie outside, as far as this.
Scaled = Annotated[float, msgspec.Meta(ge=-LARGEST_LABEL, le=LARGEST_LABEL)]


class Prediction(SamplePrediction, gc=False):
    """What users read. labels: number of labels in the shared mean."""

    labels: int


class Mean(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many labels a client had, and their mean, with label_range as 0 to 1."""

    count: Count
    mean: Scaled


class Update(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client's mean, for the server."""

    version: Version
    client: Name
    count: Count
    mean: Scaled


class Model(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The mean of the clients' means, and how many labels they had."""

    version: Version
    labels: Count
    mean: Scaled


UPDATE, MODEL = Codec(Update), Codec(Model)
encode_prediction = msgspec.json.Encoder().encode
