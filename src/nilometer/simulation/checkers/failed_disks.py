"""Does a broker whose disk fails take that log directory offline, and nothing else, and does the cluster then
trust no replica in it?

When an operation in a log directory fails, the broker must take that directory offline, or end. No request,
service or other log may fail because of it, so an error of a log directory that is logged with a traceback
was not handled. Errors of the coordination store's disk are excused; other checkers check their effects.

A broker that starts looks into its directories before it opens them. One that fails then, and works when it
is opened, may be used.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator

import msgspec

from nilometer.identifiers import BrokerId
from nilometer.simulation.checkers.logs import FUTURE
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode, PlayedError
from nilometer.simulation.world import Process

VIOLATIONS_MAX = 10
LOCK = ".lock"
SETTLE_S = 2.0
"""Seconds after an error within which its log directory must be offline."""


class _Failure(msgspec.Struct, frozen=True):
    node: BrokerNode
    process: Process
    directory: str
    error: PlayedError
    at_s: float
    was_open: bool
    """Whether the process had the directory's lock."""


class FailedDisks:
    """Checks that failed log directories are taken offline; ``violations`` are the findings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[tuple[Process, str], _Failure] = {}
        """The first failure of each directory that its broker has not taken offline yet."""
        self.violations: list[str] = []

    def look(self) -> None:
        for key, failure in list(self._open.items()):
            node = failure.node
            if node.process is not failure.process or failure.directory in node.failed_folders:
                del self._open[key]
            elif node.broker is not None and self._now_s >= failure.at_s + SETTLE_S:
                del self._open[key]
                if failure.was_open or not _has_lock(node, failure.directory):
                    self._note(
                        f"failed disk: {node.name} continues to use {failure.directory} after {failure.error}"
                    )

    def on_error(self, error: PlayedError) -> None:
        if error.errno == errno.ENOSPC and FUTURE.search(posixpath.dirname(error.path)):
            return  # a copy that has no room is given up; its directory goes on
        for node in self._cluster.known.values():
            directory = node.directory_of(error.path)
            if node.process is not None and node.process is error.process and directory is not None:
                is_open = _has_lock(node, directory)
                failure = _Failure(node, node.process, directory, error, self._now_s, is_open)
                self._open.setdefault((node.process, directory), failure)

    def excuses(self, error: BaseException | None) -> bool:
        """Return whether ``error`` or its cause is an injected error of the coordination store's disk."""
        while error is not None and not isinstance(error, PlayedError):
            error = error.__cause__
        return error is not None and not any(
            node.directory_of(error.path) for node in self._cluster.known.values()
        )

    @property
    def _now_s(self) -> float:
        return self._cluster.world.loop.time()

    def _note(self, violation: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(violation)


def _has_lock(node: BrokerNode, directory: str) -> bool:
    """Whether the broker's process has opened the directory."""
    disk = node.host.disk
    found = disk.find(posixpath.join(directory, LOCK))
    return isinstance(found, FileNode) and disk.locks.get(found) is node.process


def not_failed_over(cluster: Cluster) -> list[str]:
    """Return the brokers that do not serve although they have another directory, and the failed replicas that
    still lead or are in the ISR.

    To be called while only log directories are broken. A failed replica must have lost the leadership and be
    removed from the ISR, unless it is the only member. The location of replicas is read from the virtual
    disks.
    """
    down = [
        f"failed log directory: {node.name} does not serve, although its other log directories work"
        for node in cluster.nodes.values()
        if len(node.folders) > 1 and not node.is_serving
    ]
    return down or [
        violation for node in cluster.nodes.values() for violation in _still_trusted(cluster, node)
    ]


def _still_trusted(cluster: Cluster, node: BrokerNode) -> Iterator[str]:
    image, failed = cluster.newest_image, tuple(node.failed_folders)
    if image is None or not failed:
        return
    for key, state in image.partitions_on(BrokerId(node.id)):
        topic = image.topic_by_id(key.topic_id)
        places = node.places_of(f"{topic.name}-{key.partition}") if topic is not None else []
        if not places or not all(
            place.startswith(tuple(f"{folder}/" for folder in failed)) for place in places
        ):
            continue
        if state.leader == node.id:
            yield f"failed log directory: {key} is led by {node.id}, whose log is in one of {failed}"
        elif node.id in state.isr and len(state.isr) > 1:
            yield f"failed log directory: {node.id}, whose log of {key} failed, is in the ISR {state.isr}"
