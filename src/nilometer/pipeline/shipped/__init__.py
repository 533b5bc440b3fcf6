"""The pipelines that come with Nilometer: each a file to read, copy and change; they import only pyspark."""
