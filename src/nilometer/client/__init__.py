"""Clients of a cluster: producer, consumer, admin, and the connection that brokers also use to each other.

From the bottom up: ``settings`` (configuration keys), ``network`` (connections, cluster metadata, the choice
of the broker for a request), ``positions`` and ``offset_queries`` (where a consumer reads), ``group``
(consumer group membership); on top of them ``producer``, ``consumer`` and ``admin``; ``ingest`` (files into
topics) uses these. All I/O goes through the runtime, so the same client also runs on the virtual event loop
of a simulation. Import each name from its module: this package imports nothing, so that an import costs only
what it uses.
"""
