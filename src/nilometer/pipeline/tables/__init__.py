"""Topics as tables: records become rows of a schema, and the rows of a batch one commit of a table.

Without Spark: ``shipped.table`` calls this package, on executors to write data files and on the driver to
commit them. ``value_types`` are the types of columns, ``json_schema`` their text, ``inference`` and
``evolution`` decide them; ``values`` decodes a record, ``staged_files`` writes the rows, ``delta_store``,
``iceberg_store`` and ``parquet_store`` are the kinds of tables, and ``table_writer`` orders the steps.
"""
