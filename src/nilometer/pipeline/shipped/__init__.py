"""The shipped pipelines: each is one file to read, copy and change, and imports only pyspark."""
