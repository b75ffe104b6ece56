"""What the roles send and remember. Others may write to these topics: hence the bounds."""

from typing import Annotated

import msgspec

from streamfl.encoding.wire import Codec, Count, Name, Version
from streamfl.records.predictions import SamplePrediction

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Prediction(SamplePrediction, gc=False):
    """What users read. labels: number of labels in the shared mean."""

    labels: int


class Mean(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many labels a client had, and their mean on the scale from 0 to 1."""

    count: Count
    mean: Fraction


class Update(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client's mean, for the server."""

    version: Version
    client: Name
    count: Count
    mean: Fraction


class Model(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The mean of the clients' means, and how many labels they had."""

    version: Version
    labels: Count
    mean: Fraction


UPDATE, MODEL = Codec(Update), Codec(Model)
encode_prediction = msgspec.json.Encoder().encode
