"""Changes of the metadata while no broker runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nilometer.broker.offline_metadata import BrokersRun, change_offline
from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.decision import Decision, Refusal
from nilometer.cluster.entries import encode_entry, sign
from nilometer.cluster.features import LEVELS_OF_NEW_CLUSTERS
from nilometer.cluster.history import MetadataHistory
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ClusterCreated
from nilometer.coordination.local.store import LocalStore
from nilometer.identifiers import BrokerId, Incarnation
from nilometer.local.first_users import NewUser, unused_store, write_first_users
from nilometer.runtime import Runtime
from nilometer.security.scram import ScramMechanism, credential_of, salted_password

BOTH = (ScramMechanism.SHA_256, ScramMechanism.SHA_512)
READ_ALL = Acl(
    ResourceType.TOPIC, "demo-", PatternType.PREFIXED, "User:demo", "*", Operation.ALL, Permission.ALLOW
)


def folded(folder: Path) -> ClusterImage:
    async def fold() -> ClusterImage:
        store = LocalStore(Runtime.system(), str(folder))
        await store.open()
        history = MetadataHistory()
        for entry in await store.read(0, 100):
            assert all(item.accepted for item in history.apply([(entry.number, entry.data)]))
        assert history.image.cluster_id == store.cluster_id
        await store.close()
        return history.image

    return asyncio.run(fold())


def write(folder: Path, *users: NewUser, acls: tuple[Acl, ...] = ()) -> None:
    asyncio.run(write_first_users(unused_store(f"local:{folder}"), users, acls=acls))


def knows(image: ClusterImage, user: str, password: str, mechanism: ScramMechanism) -> bool:
    found = image.scram_users.of(user)[mechanism]
    salted = salted_password(mechanism, password, found.salt, found.iterations)
    return found == credential_of(mechanism, salted, found.salt, found.iterations)


def test_a_new_cluster_has_users_and_acls(tmp_path: Path) -> None:
    admin = NewUser(name="admin", password="one", mechanisms=BOTH, iterations=5000)
    write(tmp_path / "store", admin, NewUser(name="demo", password="two"), acls=(READ_ALL,))
    image = folded(tmp_path / "store")
    assert image.number == 0, "one entry: it is there, or nothing of it"
    assert all(knows(image, "admin", "one", mechanism) for mechanism in BOTH)
    assert image.scram_users.of("admin")[ScramMechanism.SHA_256].iterations == 5000
    assert list(image.scram_users.of("demo")) == [ScramMechanism.SHA_512]
    assert READ_ALL in image.acls
    assert dict(image.finalized_features) == dict(LEVELS_OF_NEW_CLUSTERS)
    assert b"one" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "one" not in repr(admin)


def test_a_password_is_replaced_and_an_acl_kept(tmp_path: Path) -> None:
    for password in ("old", "new"):
        write(tmp_path / "store", NewUser(name="admin", password=password), acls=(READ_ALL,))
    image = folded(tmp_path / "store")
    assert knows(image, "admin", "new", ScramMechanism.SHA_512)
    assert not knows(image, "admin", "old", ScramMechanism.SHA_512)
    assert len(image.acls) == 1
    assert image.controller_epoch == 2


def test_the_next_controller_begins_after_it(tmp_path: Path) -> None:
    write(tmp_path / "store", NewUser(name="admin", password="one"))
    image = folded(tmp_path / "store")
    entry = controllership_entry(image, BrokerId(1), Incarnation("7"), Runtime.system().entropy)
    assert image.counts(entry)
    assert not any(isinstance(record, ClusterCreated) for record in entry.records)


def test_an_entry_of_an_earlier_controller_no_longer_counts(tmp_path: Path) -> None:
    earlier = controllership_entry(ClusterImage(), BrokerId(1), Incarnation("7"), Runtime.system().entropy)
    image = ClusterImage()
    image.apply_entry(0, earlier)

    async def scenario() -> None:
        store = LocalStore(Runtime.system(), str(tmp_path / "store"))
        await store.open()
        await store.append(0, encode_entry(earlier))
        await change_offline(store, Runtime.system().entropy, lambda image: Decision((), None))
        late = sign([], earlier.controllership)
        assert await store.append(2, encode_entry(late))
        history = MetadataHistory()
        entries = [(entry.number, entry.data) for entry in await store.read(0, 100)]
        assert [item.accepted for item in history.apply(entries)] == [True, True, False]
        await store.close()

    asyncio.run(scenario())


def test_it_is_refused_while_brokers_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LocalStore(Runtime.system(), str(tmp_path / "store"))
        await broker.open()
        await broker.register(3, b"{}")
        store = f"local:{tmp_path / 'store'}"
        with pytest.raises(BrokersRun, match=r"brokers run.*: 3"):
            await write_first_users(unused_store(store), [NewUser(name="a", password="b")])
        assert await broker.read(0, 10) == []
        await broker.close()
        await write_first_users(unused_store(store), [NewUser(name="a", password="b")])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("user", "text"),
    [
        (NewUser(name="", password="x"), "Username must not be empty"),
        (NewUser(name="a", password="x", iterations=100), "Too few iterations"),
    ],
)
def test_what_a_controller_refuses_is_refused(tmp_path: Path, user: NewUser, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        write(tmp_path / "store", NewUser(name="fine", password="x"), user)
    assert folded_entries(tmp_path / "store") == 0


def folded_entries(folder: Path) -> int:
    async def count() -> int:
        store = LocalStore(Runtime.system(), str(folder))
        await store.open()
        try:
            return len(await store.read(0, 100))
        finally:
            await store.close()

    return asyncio.run(count())
