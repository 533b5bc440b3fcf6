"""Kafka's wire protocol: frames, API versions, record batches as views on bytes.

Message schemas come from kio (``messages`` is the only door to it); record batches are our own
(``record_batch``, ``records``), since the hot path never looks inside them. Knows nothing of disks,
sockets or clusters.
"""
