"""What a later version wrote is refused by name, and nothing in the data folder is changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nilometer.cluster.entries import decode_entry
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.local.store import LocalStore
from nilometer.identifiers import EntryNumber
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import produce_fields
from support.eventually import eventually
from support.unpacking import unpack
from support.upgrade.earlier_package import DATA_FOLDER
from support.upgrade.filled_folder import GROUP, SETTINGS, WRITER
from support.wire.wire_peer import WirePeer

LATER = 99
WAIT_S = 60.0
PRODUCE_VERSION = 11
GROUP_LOG, TRANSACTION_LOG = "__consumer_offsets", "__transaction_state"


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return unpack(DATA_FOLDER, tmp_path / "data")


def refused(data: Path) -> str:
    """Start a broker that must not start; return what it says. Nothing may have changed."""
    before = content(data)
    broker = NilometerBroker(data, SETTINGS)
    try:
        with pytest.raises(RuntimeError, match="ended or is fenced"):
            broker.start()
    finally:
        broker.stop()
    assert "Traceback" not in broker.output
    after = content(data)
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name]] == []
    return broker.output


FILES = {
    "meta.properties": lambda text: text.replace("version=1", f"version={LATER}"),
    ".kafka_cleanshutdown": lambda text: text.replace('"version":0', f'"version":{LATER}'),
    "recovery-point-offset-checkpoint": lambda text: f"{LATER}" + text[1:],
    "replication-offset-checkpoint": lambda text: f"{LATER}" + text[1:],
    "log-start-offset-checkpoint": lambda text: f"{LATER}" + text[1:],
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_later_version(data: Path, name: str) -> None:
    path = data / name
    before = path.read_text()
    path.write_text(FILES[name](before))
    assert path.read_text() != before
    said = refused(data)
    assert name in said and f"version {LATER}" in said


def test_a_metadata_entry_of_a_later_version(data: Path) -> None:
    number = append_later_entry(data / ".coordination")
    said = refused(data)
    assert f"entry {number} of the metadata log" in said and f"format version {LATER}" in said


def append_later_entry(folder: Path) -> int:
    """Append an entry of a later format to the metadata log; return its number."""

    async def work() -> int:
        store = LocalStore(Runtime.system(), str(folder))
        await store.open()
        try:
            image = ClusterImage()
            while entries := await store.read(image.number + 1, 100):
                for entry in entries:
                    image.apply_entry(EntryNumber(entry.number), decode_entry(entry.data))
            number = image.number + 1
            assert await store.append(number, b'{"version":%d,"records":[]}' % LATER)
            return number
        finally:
            await store.close()

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("log", "key", "named"),
    [
        (GROUP_LOG, b"\0\2" + len(GROUP).to_bytes(2, "big") + GROUP.encode(), "of the value of"),
        (
            TRANSACTION_LOG,
            b"\0\0" + len(WRITER).to_bytes(2, "big") + WRITER.encode(),
            "of a transaction's record",
        ),
    ],
    ids=["groups", "transactions"],
)
def test_a_coordinators_record_of_a_later_version(data: Path, log: str, key: bytes, named: str) -> None:
    """Its partition is not loaded, so nothing is decided from a part of it and nothing is appended."""
    broker = NilometerBroker(data, SETTINGS)
    with broker:
        append(broker, log, key, LATER.to_bytes(2, "big"))
    before = records_of(data, log)
    with broker:
        eventually(lambda: f"version {LATER} {named}" in broker.output, "the broker names it", WAIT_S)
        assert "could not be loaded" in broker.output
        assert coordinator_error(broker, log) is not ErrorCode.none
    assert records_of(data, log) == before


def append(broker: NilometerBroker, log: str, key: bytes, value: bytes) -> None:
    builder = BatchBuilder()
    builder.append(1_000, key, value)

    def is_written() -> bool:
        with WirePeer(broker.bootstrap, client_id="__admin_client") as peer:
            fields = produce_fields(PRODUCE_VERSION, log, {0: builder.build()})
            answer = peer.ask(ApiKey.PRODUCE, PRODUCE_VERSION, **fields)
        return answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    eventually(is_written, "the record is in the log", WAIT_S)


def coordinator_error(broker: NilometerBroker, log: str) -> ErrorCode:
    with WirePeer(broker.bootstrap) as peer:
        if log == GROUP_LOG:
            return peer.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=(GROUP,)).groups[0].error_code
        answer = peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(WRITER,))
        return answer.transaction_states[0].error_code


def records_of(data: Path, log: str) -> dict[str, bytes]:
    folder = data / f"{log}-0"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}
