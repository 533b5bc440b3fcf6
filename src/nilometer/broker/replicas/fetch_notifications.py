"""Notifies a partition's waiting fetches and session watches of its changes.

Followers wait for appended records, consumers for committed ones. Each function goes over a copy of the
waiters, since a waiter that sends its response leaves.
"""

from __future__ import annotations

from nilometer.broker.replicas.delayed_fetch import FetchWatchable


def records_appended(partition: FetchWatchable, byte_count: int) -> None:
    """Notify the followers that ``byte_count`` more bytes can be fetched."""
    for waiter in list(partition.fetch_waiters):
        if waiter.for_replica:
            waiter.on_readable(partition, byte_count)


def fetch_went_back(partition: FetchWatchable) -> None:
    """Make waiting followers fetch again, after a follower's fetch offset went back.

    That fetch may have been delayed: the offset in the follower's fetch session may be newer, and counts with
    the session's next fetch.
    """
    records_appended(partition, 0)


def high_watermark_advanced(partition: FetchWatchable, byte_count: int) -> None:
    """Notify consumers that about ``byte_count`` more bytes can be read (at least 1), and followers that
    there is a newer high watermark to send."""
    for waiter in list(partition.fetch_waiters):
        if waiter.for_replica:
            waiter.on_watermark_advanced(partition)
        else:
            waiter.on_readable(partition, max(byte_count, 1))


def log_start_moved(partition: FetchWatchable) -> None:
    """Notify followers that they must move their log start offset soon; for consumers no bytes were
    added."""
    for waiter in list(partition.fetch_waiters):
        if waiter.for_replica:
            waiter.on_watermark_advanced(partition)
        else:
            waiter.on_readable(partition, 0)


def role_changed(partition: FetchWatchable) -> None:
    """Make every waiting fetch send its response at once."""
    for waiter in list(partition.fetch_waiters):
        waiter.complete(partition)
