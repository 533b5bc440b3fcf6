"""Clients of a cluster: producer, consumer, admin, and the connection that brokers use among themselves too.

From the bottom up: ``connection`` (one TCP connection), ``connection_pool``, ``cluster_metadata`` (pure),
``client`` (whom to ask, trying again), and on top of it ``producer``, ``consumer`` with its ``group``,
``admin`` and ``ingest``. All I/O goes through the runtime: the same client runs on a virtual event loop.
Import what is needed from its module; this package imports nothing, so that none of it is paid for unasked.
"""
