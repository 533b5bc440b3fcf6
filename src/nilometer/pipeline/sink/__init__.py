"""The sink for Spark, ``write.format("nilometer")`` and ``writeStream.format("nilometer")``.

``cluster_writer`` is the blocking producer, ``spark_sink`` has the options and the writers for Spark; a
streaming task writes its records in one transaction.
"""
