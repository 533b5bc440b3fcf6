"""Reads partitions' folders directly, while brokers write to them or without any broker.

``stored_files`` opens places, ``replica_folders`` finds the replicas in them, ``log_slices`` divides a log
into slices, one per task, ``slice_reader`` reads a slice, ``log_transactions`` finds aborted records, and
``log_source`` is the data source for Spark, ``format("nilometer-log")``. ``archived_partition`` reads what
``nilometer.pipeline.archive`` has copied. Nothing is ever written.
"""
