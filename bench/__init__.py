"""Nilometer beside Apache Kafka: the same client, the same machine, one at a time, in one run."""
