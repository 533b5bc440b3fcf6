"""A simulated ZooKeeper ensemble: servers with elections, logs, sessions and watches, and a client.

Behaves towards its clients as ZooKeeper 3.8 does, including its weaknesses: a local read may be stale, a
response may be lost, a session may expire without a notification to its owner. Written from ZooKeeper's
published description.
"""
