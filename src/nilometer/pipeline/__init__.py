"""PySpark: data sources and sink for Spark, the shipped pipelines, the audit, and their runner.

Importing this package imports neither Spark nor numba; each module imports what it needs when it is used.
"""
