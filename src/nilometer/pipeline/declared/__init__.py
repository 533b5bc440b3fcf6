"""Shipped pipelines as Spark Declarative Pipelines: definitions, and functions that copy and run them."""
