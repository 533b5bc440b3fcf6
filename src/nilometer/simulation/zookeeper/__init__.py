"""A virtual ZooKeeper ensemble: servers that elect, log, commit and lag, sessions, watches, and a client.

Behaves as ZooKeeper 3.8 does towards its clients, its weak sides included: local reads may be old, an answer
may be lost, a session ends without notice to its owner. Written from its published description.
"""
