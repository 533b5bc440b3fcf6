"""The data source ``format("nilometer")``, which reads from brokers, in batches and as a stream.

``cluster_reader`` is the blocking client, ``cluster_source`` has the plan and the readers for Spark.
"""
