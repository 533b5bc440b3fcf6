"""The partitions that this broker hosts: their logs, their roles, who waits for them, and how they follow."""
