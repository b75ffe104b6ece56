"""Why a worker of any system refuses or ignores a record, or writes a notice to its log: each reason, its
meaning and its remedy.

A system declares further reasons in ``System.refusals`` and ``System.notices``. The counters of refused and
ignored records, the remedies in the log, and the tables on the pages of docs/reference are made from these
declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["CORRECT", "IGNORED", "NOTICES", "OTHER_SETTINGS", "REFUSALS", "WRITERS", "Reason"]


class Reason(NamedTuple):
    """What a reason means, and what an operator does about it.

    remedy: empty for a refusal whose remedy is ``CORRECT``, and where nothing has to be done.
    """

    meaning: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.meaning}; {self.remedy}" if self.remedy else self.meaning


# The remedy of a refusal that declares none.
CORRECT = (
    "correct the writer or the settings, then send the records back: streamfl dead-letters CONFIG --replay"
)
OTHER_SETTINGS = "the writer has other settings: run streamfl check CONFIG at both members"
WRITERS = "check who may write to this topic"

REFUSALS: Mapping[str, Reason] = {
    "configuration": Reason(
        "it was made with another federation name, seed, loss, kernel, dictionary, precision, list of "
        "features or list of parties, or from samples with another number of features",
        OTHER_SETTINGS,
    ),
    "contradictory_part": Reason("a part of a long message does not fit the message that it names"),
    "damaged_part": Reason("the parts of a long message do not have the digest that they name"),
    "dimension": Reason(
        "a sample or a message has another number of features than the settings",
        "correct the writer of the samples, or samples.features and samples.dimension; between members: run "
        "streamfl check CONFIG at both",
    ),
    "forged": Reason(
        "a message of one member, client or entity under the key of another; with keys of members, a seal or "
        "signature that does not fit",
        f"somebody writes in another member's name: {WRITERS}",
    ),
    "implausible": Reason(
        "an impossible number, such as an epoch more than a day ahead or a sequence beyond 2^53, or a "
        "message that nothing led to"
    ),
    "label": Reason(
        "a label that is not a finite number, is none of the classes, or lies 1,000 times beyond the label "
        "range"
    ),
    "labels_keyed_otherwise": Reason(
        "a label of a client that has no sample in the label's partition, and there is no room for more of "
        "these",
        "streamfl rekey CONFIG writes a copy of the topic, keyed by client: name it in [labels.rekey]",
    ),
    "late": Reason("a part of a sample that was already sent on without it"),
    "malformed": Reason(
        "it cannot be decoded, has no value, is not the expected kind of object, or holds a name that is too "
        "long"
    ),
    "missing_field": Reason(
        "a field that the settings name, or the name of the client or the entity, is missing"
    ),
    "missing_part": Reason("a part of a long message came before an earlier part"),
    "not_a_category": Reason("a category is not a text, whole number or boolean"),
    "not_a_member": Reason(
        "its key is not in the members' file, or its member may not have that role",
        f"add the key or the role to the members' file, or {WRITERS}",
    ),
    "not_a_time": Reason("a time is not in the format of the settings"),
    "not_finite": Reason(
        "NaN, an infinity, or a number too large: above 1e9 in an embedding, or features whose absolute "
        "values add up to 1e18 times samples.input_norm"
    ),
    "not_its_client": Reason(
        "its member may not speak for this client or party",
        f"if it is that member's, add it to the member in the members' file; otherwise {WRITERS}",
    ),
    "not_keyed_by_client": Reason(
        "one client more than federation.clients, where records of a client are in several partitions: it "
        "takes a place in each",
        "streamfl rekey CONFIG writes a copy of the topic, keyed by client: name it in [samples.rekey]",
    ),
    "not_numeric": Reason("a feature is not a number"),
    "oversized": Reason(
        "it is longer than 1,000,000 bytes, a message between members longer than 997,952, or a sample's key "
        "longer than 65,536"
    ),
    "partition": Reason(
        "an entity of a party with [privacy] is in another partition than that of its name: its budget would "
        "be counted twice",
        "write the topic keyed by entity with Kafka's default partitioner, or let streamfl rekey CONFIG "
        "write a copy",
    ),
    "revoked": Reason("its key or its member is revoked", f"give the member a new key, or {WRITERS}"),
    "shape": Reason("an array of another size"),
    "skipped": Reason("an operator skipped it with streamfl skip"),
    "unknown_client": Reason(
        "one client of a partition more than federation.clients", "raise federation.clients"
    ),
    "unknown_schema": Reason("the schema registry does not know the schema that it names"),
    "unreadable": Reason(
        "a batch could not be read and was skipped; the value is the batch as it was in the topic",
        "write its records again",
    ),
    "unsigned": Reason(
        "with keys of members: a message without a seal, or a model without a signature",
        f"give its writer an [identity], or {WRITERS}",
    ),
    "version": Reason(
        "it is of another version of the protocol",
        "the writer runs another version of streamfl: bring both to the same",
    ),
}

IGNORED: Mapping[str, Reason] = {
    "deletion": Reason("a row was deleted"),
    "tombstone": Reason("a record without a value, which lets compaction forget a key"),
    "no_row": Reason("an event of a change log without a row: a truncation, a heartbeat, a message"),
    "header": Reason("the line that names a CSV file's columns"),
    "moved": Reason(
        "it came to its client's partition before partitions were added, and was forwarded to the current one"
    ),
}

NOTICES: Mapping[str, Reason] = {
    "keyed_otherwise": Reason(
        "records of one entity came in two partitions, where they never meet",
        "write all members' topics with the same keys by the same partitioner, or let streamfl rekey CONFIG "
        "write a copy",
    ),
    "labels_keyed_otherwise": Reason(
        "a label came in another partition than its client's samples: they never meet",
        "write both topics with the same keys by the same partitioner, or let streamfl rekey CONFIG write a "
        "copy",
    ),
    "labels_outside_range": Reason(
        "labels were outside the range in the settings; they are learnt too",
        "set the range of all possible labels",
    ),
    "labels_without_sample": Reason(
        "labels were forgotten because no sample came for them, or to make room",
        "check that both topics have the same keys, and that samples.sample_id and labels.sample_id name a "
        "sample alike",
    ),
    "moved": Reason(
        "a record came to its client's partition of before partitions were added, and was forwarded"
    ),
    "no_labels": Reason(
        "samples come, and none has met a label, so nothing is learnt",
        "check samples.label; for labels on a topic of their own, check the keys of both topics and both "
        "sample_id",
    ),
    "not_keyed_by_client": Reason(
        "samples of one client came in two partitions: in each it counts as another client",
        "write the topic keyed by client, or let streamfl rekey CONFIG write a copy: name it in "
        "[samples.rekey]",
    ),
    "not_yet_readable": Reason(
        "a record waits for a service that is needed to read it, or to write what follows from it",
        "start the service that the text names",
    ),
    "samples_without_label": Reason(
        "samples were forgotten because no label came for them, or to make room",
        "check that both topics have the same keys, and that samples.sample_id and labels.sample_id name a "
        "sample alike",
    ),
    "without_noise": Reason(
        "the member continues without noise, as privacy.without_noise says: its earlier promise of privacy "
        "no longer holds",
        "if this was not meant, stop the member and restore the settings of its noise",
    ),
}
