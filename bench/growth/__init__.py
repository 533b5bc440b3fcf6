"""How the cost of a cluster grows with partitions, brokers, groups, connections: `python -m bench.growth`."""
