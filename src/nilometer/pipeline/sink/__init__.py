"""The sink for Spark, ``write.format("nilometer")`` and ``writeStream.format("nilometer")``.

``cluster_writer`` is the blocking producer, ``transactional_writer`` writes the records of one task in a
transaction, ``sink_options`` checks the options, and ``spark_sink`` has the writers for Spark.
"""
