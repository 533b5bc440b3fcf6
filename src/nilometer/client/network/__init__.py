"""The way to the brokers: one connection, all connections, cluster metadata, which broker to ask.

From the bottom up: ``connection`` (one TCP connection), ``cluster_metadata`` and ``metadata_exchange``
(pure), ``connection_pool``, ``client`` (which broker to ask, retries).
"""
