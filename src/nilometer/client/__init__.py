"""Clients of a cluster: producer, consumer, admin, and the connection that brokers use among themselves too.

From the bottom up: ``settings`` (what a client may be told), ``network`` (connections, what is known of the
cluster, which broker to ask), ``offsets`` (positions in partitions), ``group`` (membership in one); on top of
them ``producer``, ``consumer`` and ``admin``; and with these, ``replicas`` (elections, moves) and ``ingest``
(files into topics). All I/O goes through the runtime: the same client runs on a virtual event loop. Import
what is needed from its module; this package imports nothing, so that an import costs only what it uses.
"""
