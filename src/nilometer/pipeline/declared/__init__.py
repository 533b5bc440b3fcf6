"""Shipped pipelines as Spark Declarative Pipelines: definitions to copy, and what writes them out."""
