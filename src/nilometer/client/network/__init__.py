"""The way to the brokers: one connection, all of them, what is known of the cluster, whom to ask.

From the bottom up: ``connection`` (one TCP connection), ``cluster_metadata`` and ``metadata_exchange``
(pure), ``connection_pool``, ``client`` (whom to ask, trying again).
"""
