"""Connections to brokers, cluster metadata, and the choice of the broker for a request.

From the bottom up: ``connection`` (one TCP connection), ``cluster_metadata`` (pure: no I/O),
``connection_pool``, ``client`` (chooses the broker, retries).
"""
