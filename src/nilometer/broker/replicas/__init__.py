"""The partitions that this broker hosts: their logs, roles, waiting requests and fetchers."""
