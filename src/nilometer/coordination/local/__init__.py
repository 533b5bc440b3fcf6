"""The embedded coordination store: a folder of put-if-absent files, for brokers on one machine."""

from nilometer.coordination.local.store import LocalSession, LocalStore

__all__ = ["LocalSession", "LocalStore"]
