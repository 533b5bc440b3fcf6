"""Partitions' folders read directly, beside brokers that may be writing or after they are gone.

``stored_files`` says where files lie, ``replica_folders`` what replicas there are, ``log_slices`` what one
task reads, ``slice_reader`` reads it, ``transactions`` tells committed records from aborted ones, and
``spark_source`` hands it all to Spark as ``format("nilometer-log")``. Nothing is ever written.
"""
