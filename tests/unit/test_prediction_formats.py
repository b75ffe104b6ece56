"""Every system's predictions in every format that `[predictions] format` allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from registry import FakeRegistry, serving

from streamfl.dp_frank_wolfe.messages import Prediction as Release
from streamfl.fdskl.messages import Prediction as Forecast
from streamfl.pofmkl.messages import Prediction as Guess
from streamfl.quasi_newton.scoring.predictions import Prediction as Score
from streamfl.records.formats import format_of
from streamfl.records.header_propagation import FollowedAcross
from streamfl.records.predictions import prediction_encoder
from streamfl.records.topic import RegistrySection, TopicSection
from streamfl.vafl.messages import Prediction as Revision

PREDICTIONS = [
    Guess("a", "s1", 2.5, 3, None),
    Guess("a", "s1", 2.5, (3, 4), 1.0),
    Revision("a", 0.5, 2, 0),
    Revision("a", [0.25, 0.75], 2, 1),
    Forecast("a", 0.5, 0.1, 3, 2, 0),
    Score("a", None, None, 0.25, 1, 0),
    Score("a", 0.5, 512.0, 0.25, 1, 1),
    Release("a", 0.5, 1, True),
]


@pytest.fixture(name="served")
def _served() -> Iterator[FakeRegistry]:
    with serving() as registry:
        yield registry


@pytest.mark.parametrize("format", ["json", "msgpack", "avro"])
@pytest.mark.parametrize("prediction", PREDICTIONS, ids=lambda one: f"{type(one).__module__.split('.')[1]}")
def test_a_prediction_says_the_same_in_each_format(
    served: FakeRegistry, format: Any, prediction: msgspec.Struct
) -> None:
    """Protects consumers of Avro or MessagePack from fields that are lost or changed."""
    registry = RegistrySection(url=served.url)
    encode = prediction_encoder(
        FollowedAcross(format=format, registry=registry), "f.predictions", type(prediction)
    )
    decode = format_of(TopicSection(topic="f.predictions", format=format, registry=registry)).decoder(Any)
    found = {name: value for name, value in decode(encode(prediction)).items() if value is not None}
    # A tuple of versions is a list in every format.
    expected = msgspec.json.decode(msgspec.json.encode(prediction))
    assert found == {name: value for name, value in expected.items() if value is not None}
