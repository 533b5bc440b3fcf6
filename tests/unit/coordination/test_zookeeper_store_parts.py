"""A store in ZooKeeper: its snapshot and the entries that this replaces, and its secret."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_digest_acl

from nilometer.coordination.store import StoredSecret
from nilometer.coordination.zookeeper.connect import ConnectString
from nilometer.coordination.zookeeper.ensemble import BadVersion, Delete, Node, NodeExists, NoNode
from nilometer.coordination.zookeeper.kazoo_bridge import KazooBridge
from nilometer.coordination.zookeeper.store import put_secret, read_secret
from nilometer.coordination.zookeeper.tree import EMPTY_STORE, SWEEP_AT_ONCE, Snapshots, entry_path
from nilometer.runtime.runtime import SeededEntropy


class Tree:
    """An ensemble that does what it is asked at once."""

    def __init__(self) -> None:
        self.nodes = {path: Node(data, 0, 0, 0) for path, data in EMPTY_STORE}

    async def get(self, path: str) -> Node:
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path]

    async def children(self, path: str) -> list[str]:
        parent = f"{path}/"
        return sorted(
            one.removeprefix(parent)
            for one in self.nodes
            if one.startswith(parent) and "/" not in one.removeprefix(parent)
        )

    async def create(self, path: str, data: bytes) -> None:
        if path in self.nodes:
            raise NodeExists(path)
        self.nodes[path] = Node(data, 0, 0, 0)

    async def set(self, path: str, data: bytes, version: int) -> None:
        if (await self.get(path)).version != version:
            raise BadVersion(path)
        self.nodes[path] = Node(data, version + 1, 0, 0)

    async def delete(self, path: str) -> None:
        if self.nodes.pop(path, None) is None:
            raise NoNode(path)

    async def commit(self, steps: Sequence[object]) -> None:
        deleted = [step.path for step in steps if isinstance(step, Delete)]
        if missing := [path for path in deleted if path not in self.nodes]:
            raise NoNode(missing[0])
        for path in deleted:
            del self.nodes[path]

    def add_entries(self, end: int) -> None:
        first = self.nodes["/next"].version
        self.nodes |= {entry_path(number): Node(b"", 0, 0, 0) for number in range(first, end)}
        self.nodes["/next"] = Node(b"", end, 0, 0)

    async def entries(self) -> list[int]:
        return [int(name) for name in await self.children("/entries")]


def snapshots_of(tree: Tree) -> Snapshots:
    return Snapshots(cast(Any, tree), tree.get, SeededEntropy(random.Random(1)))


@pytest.mark.parametrize("number", [1, SWEEP_AT_ONCE, SWEEP_AT_ONCE + 1, 2 * SWEEP_AT_ONCE + 50])
def test_the_entries_below_a_snapshot_are_deleted_and_no_other_ones(number: int) -> None:
    async def main() -> None:
        tree = Tree()
        snapshots = snapshots_of(tree)
        tree.add_entries(number + 50)
        assert await snapshots.write(number, b"state")
        assert await tree.entries() == list(range(number, number + 50))
        tree.add_entries(number + 60)
        assert await snapshots.write(number + 55, b"newer")
        assert await tree.entries() == list(range(number + 55, number + 60))
        assert not await snapshots.write(number, b"older")
        found = await snapshots.read()
        assert found is not None
        assert (found.number, found.data) == (number + 55, b"newer")
        assert len(await tree.children("/snapshots")) == 1, "the earlier snapshot is deleted"

    asyncio.run(main())


def test_a_sweep_goes_on_where_an_earlier_one_ended() -> None:
    """The process that wrote an earlier snapshot has stopped while it deleted the entries."""

    async def main() -> None:
        tree = Tree()
        tree.add_entries(300)
        for number in range(170):
            await tree.delete(entry_path(number))
        assert await snapshots_of(tree).write(250, b"state")
        assert await tree.entries() == list(range(250, 300))

    asyncio.run(main())


def test_a_secret_is_stored_if_it_has_the_next_number() -> None:
    async def main() -> None:
        tree = cast(Any, Tree())
        assert await read_secret(tree) is None
        assert not await put_secret(tree, 1, b"after a gap")
        for number in range(3):
            assert await put_secret(tree, number, b"secret %d" % number)
            assert not await put_secret(tree, number, b"another")
            assert not await put_secret(tree, number + 2, b"after a gap")
            assert await read_secret(tree) == StoredSecret(number, b"secret %d" % number)

    asyncio.run(main())


def bridge_to(*servers: str) -> KazooBridge:
    return KazooBridge(ConnectString(servers), 1_000, lambda: None, lambda: None)


def test_a_server_that_was_left_is_tried_last() -> None:
    connection = bridge_to("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")._connection
    for port in (2, 1, 3):
        connection.server = f"127.0.0.1:{port}"
        connection.leave()
        tried = [server[2] for server in connection._expand_client_hosts()]
        assert sorted(tried) == [1, 2, 3] and tried[-1] == port


async def test_a_node_is_protected_once_it_is_the_users_as_the_server_names_them() -> None:
    """The server keeps the digest of the user instead of "the creator", and so it is compared."""
    named = [make_digest_acl("user", "password", all=True)]
    acls = {"/a": OPEN_ACL_UNSAFE, "/b": OPEN_ACL_UNSAFE}

    def answered(value: object) -> object:
        result = SimpleNamespace(value=value, exception=None)
        return SimpleNamespace(rawlink=lambda callback: callback(result))

    def set_acls(path: str, wanted: Sequence[object]) -> object:
        acls[path] = named if wanted is CREATOR_ALL_ACL else list(wanted)
        return answered(None)

    bridge = bridge_to("127.0.0.1:1")
    bridge._loop = asyncio.get_running_loop()
    bridge._client = SimpleNamespace(
        get_acls_async=lambda path: answered((acls[path], None)), set_acls_async=set_acls
    )
    assert not await bridge.is_protected("/a")
    assert await bridge.is_protected("/a")
    assert bridge._client.default_acl == named, "of all nodes that it creates from now on"
    assert not await bridge.is_protected("/b")
    await bridge.protect("/b")
    assert await bridge.is_protected("/b")
