"""Why a worker of any system refuses records: each reason labels a metric and dead letters.

A system has further reasons of its own, in ``System.refusals``. All of them have their counters from a worker's start.
"""

from collections.abc import Mapping

__all__ = ["REASONS"]

REASONS: Mapping[str, str] = {
    "configuration": "the writer has other settings",
    "contradictory_part": "a part of a long message does not fit the message that it names",
    "damaged_part": "the parts of a long message do not have the digest that they name",
    "dimension": "a list of features of another length",
    "forged": "somebody writes in another member's name",
    "implausible": "a number that is impossible",
    "label": "a label that is not one of the classes, or far outside its range",
    "labels_keyed_otherwise": "a label of a client without a sample in the label's partition",
    "late": "a part of a sample that was already sent on without it",
    "malformed": "it cannot be decoded",
    "missing_field": "a field that the settings name is missing",
    "missing_part": "a part of a long message came before an earlier part",
    "not_a_category": "a category is not a text, whole number or boolean",
    "not_a_member": "the key is not in the members' file",
    "not_a_time": "a time is not in the format of the settings",
    "not_finite": "NaN, an infinity, or a number too large to be squared",
    "not_its_client": "the member may not speak for this client or party",
    "not_keyed_by_client": "records of one client are in several partitions",
    "not_numeric": "a feature is not a number",
    "oversized": "it is longer than allowed",
    "partition": "an entity is in another partition than that of its name",
    "revoked": "the key or the member is revoked",
    "shape": "an array of another size",
    "skipped": "an operator skipped it with streamfl skip",
    "unknown_schema": "the schema registry does not know its schema",
    "unreadable": "the batch could not be read and was skipped",
    "unsigned": "it has no seal or signature",
    "version": "it is of another version of the protocol",
}
