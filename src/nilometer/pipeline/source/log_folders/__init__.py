"""Reads partitions' folders directly, while brokers write to them or without any broker.

``places`` finds replicas and archived partitions, ``log_plan`` decides what is read of them, ``log_slices``
divides a log into slices, one per task, and reads them without aborted records, and ``log_source`` is the
data source for Spark, ``format("nilometer-log")``. ``archive_manifest`` is what an archive says of a
partition that ``nilometer.pipeline.archive`` has copied. Nothing is ever written.
"""
