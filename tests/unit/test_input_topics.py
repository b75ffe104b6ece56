"""What is remembered of input topics beside the positions in them."""

from __future__ import annotations

from streamfl.runtime.bus import Moved
from streamfl.runtime.input_topics import EPOCH, IDENTITY, InputTopics

SAMPLES = ("samples", 0)
FACT = (EPOCH + "samples", 0)


def test_an_epoch_is_forgotten_where_another_leader_may_have_written() -> None:
    """Protects a healthy log from being taken for one that was cut: behind a gap, and in a copy of the topic
    in another cluster, epochs are others. An operator deletes the topic's identity to go on with a copy."""
    topics = InputTopics()
    topics.are({"samples": "here"})
    topics.restored(0, IDENTITY + "samples", 7)
    topics.written_by({SAMPLES: 3})
    assert list(topics.to_write([0])) == [(FACT, 3)]
    topics.lose(Moved(*SAMPLES, 5, 9))
    assert topics.epoch(*SAMPLES) == -1
    assert (FACT, None) in topics.to_write([0])
    assert (FACT, None) not in topics.to_write([0])
    topics.written_by({SAMPLES: 3})
    assert list(topics.to_write([0])) == [(FACT, 3)]
    assert [name for name, _ in topics.remade(0, ["samples"])] == ["samples"]
    assert topics.epoch(*SAMPLES) == 3
    copied = InputTopics()
    copied.are({"samples": "there"})
    copied.restored(0, EPOCH + "samples", 3)
    assert list(copied.remade(0, ["samples"])) == []
    assert copied.epoch(*SAMPLES) == -1
    assert (FACT, None) in copied.to_write([0])
