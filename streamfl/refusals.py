"""Why a worker of any system refuses records: each reason labels a metric and dead letters.

A system has further reasons of its own, in ``System.refusals``. All of them have their counters from a worker's start.
"""

from collections.abc import Mapping

__all__ = ["REASONS"]

REASONS: Mapping[str, str] = {
    "configuration": "the writer has other settings",
    "contradictory_part": "a part of a long message does not fit the message that it says it belongs to",
    "damaged_part": "the parts of a long message do not have the digest that each of them names",
    "dimension": "a list of features of another length",
    "forged": "somebody writes in another's name",
    "implausible": "a number that cannot be",
    "label": "a label that is none of the classes, or far out of its range",
    "labels_keyed_otherwise": "a label of a client that has no sample in the label's partition",
    "late": "a part of a sample that went on without it",
    "malformed": "it cannot be read as what the topic has",
    "missing_field": "a field that was named in the settings is not there",
    "missing_part": "a part of a long message whose part before it has not come",
    "not_a_category": "a category is no text, whole number or truth value",
    "not_a_member": "the members' file does not have the key",
    "not_a_time": "a time is not written as the settings say",
    "not_finite": "NaN, an infinity, or a number too large to be squared",
    "not_its_client": "the member may not speak for this client or party",
    "not_keyed_by_client": "records of one client lie in several partitions",
    "not_numeric": "a feature is not a number",
    "oversized": "it is longer than its bound",
    "partition": "an entity lies in another partition than the one of its name",
    "revoked": "the key or the member is revoked",
    "shape": "an array of another size",
    "skipped": "an operator passed over it with streamfl skip",
    "unknown_schema": "the schema registry does not know its schema",
    "unreadable": "the batch could not be read and was passed over",
    "unsigned": "it has no seal or signature",
    "version": "it is of another version of the protocol",
}
