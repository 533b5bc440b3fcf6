"""The logs in use, by partition and by log directory. Invariant: a partition has at most one log in use."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition


class LogTable:
    def __init__(self, paths: Sequence[str]) -> None:
        """``paths`` are those of the log directories."""
        self.logs: dict[TopicPartition, Log] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self._logs_of: dict[str, dict[TopicPartition, Log]] = {path: {} for path in paths}

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory:
        """Return the directory of a log in use. Raises KeyError."""
        return self._directory_of[topic_partition]

    def logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Return the logs in use in ``directory``; a view, not a copy."""
        return self._logs_of[directory.path]

    def add(self, directory: LogDirectory, log: Log) -> None:
        """Put ``log`` in use, instead of a log of the same partition in another directory if there is one."""
        key = log.topic_partition
        if (earlier := self._directory_of.get(key)) is not None:
            del self._logs_of[earlier.path][key]
        self.logs[key] = log
        self._directory_of[key] = directory
        self._logs_of[directory.path][key] = log

    def remove(self, topic_partition: TopicPartition) -> tuple[Log, LogDirectory] | None:
        """Forget the partition's log and return it with its directory; None if there is none."""
        log = self.logs.pop(topic_partition, None)
        if log is None:
            return None
        directory = self._directory_of.pop(topic_partition)
        del self._logs_of[directory.path][topic_partition]
        return log, directory

    def remove_all(self, directory: LogDirectory) -> list[Log]:
        """Forget all logs in ``directory``; return them, sorted by partition."""
        logs = [log for _, log in sorted(self.logs_in(directory).items())]
        for log in logs:
            self.remove(log.topic_partition)
        return logs
