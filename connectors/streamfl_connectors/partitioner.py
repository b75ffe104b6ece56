"""Kafka's partitioner by key, the same in its clients of every language, except for librdkafka's own
default."""

from __future__ import annotations

from functools import lru_cache

from kafka.partitioner.default import murmur2

__all__ = ["partition_of"]

LONGEST_REMEMBERED = 256


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, out of ``partitions``: murmur2 without its sign, as in Java's
    clients."""
    hashed = _remembered_hash(key) if len(key) <= LONGEST_REMEMBERED else _hash_of(key)
    return hashed % partitions


def _hash_of(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


_remembered_hash = lru_cache(maxsize=100_000)(_hash_of)
