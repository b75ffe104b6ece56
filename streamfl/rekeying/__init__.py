"""A user's topic written anew as it has to be: keyed by client, and one record a sample.

Two steps, as Kafka Streams takes them: the repartitioned records, and, where a sample comes in several, what is made of them.
:mod:`streamfl.rekeying.role` is the role, :mod:`streamfl.rekeying.assembly` its state, :mod:`streamfl.rekeying.reader` reads the
records, and :mod:`streamfl.rekeying.kind` says which topics there are.
"""
