"""Nilometer: a replicated, partitioned log that speaks Kafka's wire protocol."""

__version__ = "0.1.0"
