"""Replicas: looked at, made leaders, moved onto other brokers."""
