"""Topics as tables: records become rows of a schema, and the rows of a batch one commit of a table.

Without Spark: ``shipped.table`` calls this package, on executors to write data files and on the driver to
commit them. ``values`` has the types of columns and decodes a record, ``schemas`` decides the types,
``avro_values`` decodes Avro; ``staging`` turns records into rows in ``staged_files``; ``delta_store``,
``iceberg_store`` and ``parquet_store`` are the kinds of tables, and ``table_writer`` orders the steps.
"""
