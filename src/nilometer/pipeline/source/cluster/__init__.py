"""The data source ``format("nilometer")``, which reads from brokers, in batches and as a stream.

``cluster_reader`` is the blocking client, ``cluster_plan`` resolves the options to positions,
``committed_batches`` drops aborted batches for read_committed, and ``cluster_source`` has the readers for
Spark.
"""
