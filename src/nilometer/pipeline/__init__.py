"""PySpark: the data source over brokers, the shipped pipelines, and what runs them.

Importing this package imports neither Spark nor numba; each module imports what it needs when it is used.
"""
