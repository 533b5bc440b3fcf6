"""Commands that show replicas, elect leaders, and move partitions to other brokers."""
