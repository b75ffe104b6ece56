"""Rewrites a user's topic so that it is keyed by client and has one record per sample.

Two steps, as in Kafka Streams: repartition the records, and put together those that form one sample.
:mod:`streamfl.rekeying.role` is the role, :mod:`streamfl.rekeying.assembly` its state,
:mod:`streamfl.rekeying.reader` reads the records, and :mod:`streamfl.rekeying.kind` says which topics there
are.
"""
