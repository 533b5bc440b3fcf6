"""Typed configuration with Kafka's own keys: definitions, parsing, errors that name the key."""
