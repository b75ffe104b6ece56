"""Checks that samples and labels are keyed by client, that labels come, and that labels are within their
range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from streamfl.contract.measurement import counter
from streamfl.contract.role import Measurement, OperatorNotice

__all__ = ["InputMetrics", "InputWatch"]

# Enough records to rule out chance, and few enough to report a mistake soon.
ENOUGH = 20
# A mistake is reported until this many samples and labels came without it, so that a stray record is not
# reported for ever.
LATEST = 1_000
# Labels of a history are read before their samples. So many samples may come without one of them.
MOST_AWAITED = 1_000


class InputMetrics:
    """Metrics of labels."""

    labels_outside_range = counter("Labels outside samples.label_range, which are learnt too")


class InputWatch:
    """Looks at every sample and label of a worker's clients; stores no state and decides nothing.

    label: the samples' field with the label, None if there is none.
    range_key, label_range: the setting with the labels' range, and its value.
    joined: labels come on a topic of their own.
    clients: most clients whose partition is known.
    """

    def __init__(
        self, label: str | None, range_key: str, label_range: tuple[float, float], joined: bool, clients: int
    ) -> None:
        self._field = label
        self._range = f"{range_key} = {list(label_range)}"
        self._low, self._high = label_range
        self._joined = joined
        self._clients = clients
        self._place: dict[str, int] = {}
        self._label_places: dict[str, set[int]] = {}
        self._samples = self._labels = self._pairs = self._outside = 0
        self._last_outside = 0.0
        self._learnt = False
        self._told = 0
        # By reason: when a mistake was last seen, counted in samples and labels, and what is said about it.
        self._found: dict[str, tuple[int, OperatorNotice]] = {}
        self._said: set[str] = set()
        # The partitions that samples came in, and the labels by partition.
        self._sampled: set[int] = set()
        self._labels_in: Counter[int] = Counter()

    def sample(self, partition: int, client: str, label: float | None) -> None:
        """A sample came, whether it is accepted or not. label: in the learner's unit."""
        self._samples += 1
        if self._place.get(client) != partition:
            self._sampled.add(partition)
            self._moved(partition, client)
        if label is not None:
            self._pairs += 1
            if not 0.0 <= label <= 1.0:
                self._outside += 1
                self._last_outside = label

    def samples(self, partition: int, clients: Sequence[str], labels: Sequence[float | None]) -> None:
        """As :meth:`sample` for each of several samples of one partition, in order."""
        given = [label for label in labels if label is not None]
        if {*map(self._place.get, clients)} != {partition} or (
            given and not 0.0 <= min(given) <= max(given) <= 1.0
        ):
            for client, label in zip(clients, labels, strict=True):
                self.sample(partition, client, label)
        else:
            self._samples += len(labels)
            self._pairs += len(given)

    def label(self, partition: int, client: str, label: float) -> None:
        """A label came on a topic of its own, whether it is accepted or not."""
        self._labels += 1
        self._labels_in[partition] += 1
        if not 0.0 <= label <= 1.0:
            self._outside += 1
            self._last_outside = label
        # Either topic may be read first.
        places = self._label_places.get(client)
        if places is None:
            if len(self._label_places) >= self._clients:
                del self._label_places[next(iter(self._label_places))]
            places = self._label_places[client] = set()
        places.add(partition)
        place = self._place.get(client)
        if place is not None and place != partition:
            self._apart(client, partition, place)

    def pair(self) -> None:
        """A sample and its label were joined."""
        self._pairs += 1

    @property
    def disorder(self) -> str | None:
        """Why samples or labels are in the wrong partition, if that was seen lately."""
        return next((notice.text for at, notice in self._found.values() if self._seen - at < LATEST), None)

    def trouble(self, learnt: Callable[[], bool]) -> str | None:
        """What keeps the clients from learning as they should. learnt: whether any client ever learnt; called
        only if needed."""
        return self.disorder or self._nothing_to_learn(learnt)

    def notices(self, learnt: Callable[[], bool]) -> Iterable[OperatorNotice]:
        """What was found since the last call, each kind once, and how many labels were outside their
        range."""
        found = {reason: notice for reason, (_, notice) in self._found.items()}
        if (nothing := self._nothing_to_learn(learnt)) is not None:
            # It depends on the state too: whether anything was ever learnt.
            found["no_labels"] = OperatorNotice("no_labels", nothing)
        for reason in sorted(found.keys() - self._said):
            self._said.add(reason)
            yield found[reason]
        if self._outside > self._told:
            self._told = self._outside
            shown = self._low + self._last_outside * (self._high - self._low)
            yield OperatorNotice(
                "labels_outside_range",
                f"{self._outside} of {self._labels or self._pairs} labels were outside {self._range}, the "
                f"last {shown:g}: set the range of all possible labels, before anything is learnt with "
                "another one",
                of_records=True,
            )

    def measure(self) -> Iterable[Measurement]:
        """How many labels were outside their range."""
        yield InputMetrics.labels_outside_range(self._outside)

    @property
    def _seen(self) -> int:
        return self._samples + self._labels

    def _moved(self, partition: int, client: str) -> None:
        place = self._place.get(client)
        if place is not None:
            self._find(
                "not_keyed_by_client",
                f"samples of the client {client!r} come in the partitions {min(place, partition)} and "
                f"{max(place, partition)}: in each it counts as another client, with a place and a state of "
                "its own. Write the topic with the client's name as the key, or name it in [samples.rekey] "
                "and let `streamfl rekey CONFIG` write samples.topic from it",
            )
        elif len(self._place) >= self._clients:
            del self._place[next(iter(self._place))]
        self._place[client] = partition
        if elsewhere := self._label_places.get(client, set()) - {partition}:
            self._apart(client, min(elsewhere), partition)

    def _apart(self, client: str, label: int, sample: int) -> None:
        self._find(
            "labels_keyed_otherwise",
            f"a label of the client {client!r} came in partition {label}, its samples come in partition "
            f"{sample}: they never meet. Write both topics with the same keys, by the same partitioner, or "
            "have one rekeyed: [labels.rekey] or [samples.rekey] names the topic, and `streamfl rekey "
            "CONFIG` writes labels.topic or samples.topic",
        )

    def _find(self, reason: str, text: str) -> None:
        self._found[reason] = self._seen, OperatorNotice(reason, text, of_records=True)

    def _nothing_to_learn(self, learnt: Callable[[], bool]) -> str | None:
        if self._pairs or self._samples < ENOUGH:
            return None
        if self._field is not None:
            text = (
                f"none of {self._samples} samples had a label in the field {self._field!r}, so nothing is "
                "learnt: check that samples.label is the field's name; leave it out if no labels come"
            )
        # While history is read, samples of other partitions may not have been read yet, and the first may
        # have no label: labels of later samples are read before.
        elif (
            self._joined
            and (labels := sum(self._labels_in[partition] for partition in self._sampled)) >= ENOUGH
            and self._samples >= min(labels, MOST_AWAITED)
        ):
            text = (
                f"none of {labels} labels met one of {self._samples} samples, so nothing is learnt: check "
                "that both topics have the same keys (`streamfl rekey CONFIG` rekeys one), and that "
                "samples.sample_id and labels.sample_id give a sample the same name. If labels come later "
                "than labels.limit samples of a client, or than labels.expiry_seconds, raise these"
            )
        else:
            return None
        # learnt() asks all clients, and what was true once stays true.
        self._learnt = self._learnt or learnt()
        return None if self._learnt else text
