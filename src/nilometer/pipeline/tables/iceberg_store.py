"""An Iceberg table with a catalog in SQLite: each batch is one commit of the catalog.

The batch id is in the summary of each snapshot for people to see, and in the table's properties, which
change in the same commit: expiring snapshots does not forget it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.staged_files import remove_staged
from nilometer.pipeline.tables.staging import DELETED
from nilometer.pipeline.tables.table_store import (
    APPLICATION,
    BATCH,
    ROWS,
    Batch,
    Commit,
    Totals,
    arrow_schema,
    needed,
    newest_rows,
    row_type,
    without_keys,
)
from nilometer.pipeline.tables.values import KEY, TIMESTAMP, ValueType

CATALOG: Final = "nilometer"
NAMESPACE: Final = "nilometer"
TABLE: Final = f"{NAMESPACE}.topic"
CATALOG_FILE: Final = "catalog.db"


def open_catalog(table: Path) -> Any:
    """Return the catalog, a SQLite file in the table's folder; pyiceberg's ``SqlCatalog``."""
    _keep_null_lists()
    table = table.absolute()
    settings = {"uri": f"sqlite:///{table / CATALOG_FILE}", "warehouse": _uri(table)}
    return needed("pyiceberg.catalog.sql").SqlCatalog(CATALOG, **settings)


@cache
def _keep_null_lists() -> None:
    """Have pyiceberg read and write lists of structs that are null as null: 0.12 makes them empty lists."""
    compute = needed("pyarrow.compute")
    visitor = needed("pyiceberg.io.pyarrow").ArrowProjectionVisitor
    project = visitor.list

    def keep(self: Any, kind: Any, lists: Any, items: Any) -> Any:
        found: Any = project(self, kind, lists, items)
        if found is None or found.null_count == lists.null_count:
            return found
        offsets = compute.add(found.offsets, 0)  # a copy: those of a slice would take no mask
        return found.from_arrays(offsets, found.values, type=found.type, mask=lists.is_null())

    visitor.list = keep


class IcebergStore:
    def __init__(self, table: Path, *, by_day: bool = False, upsert: bool = False) -> None:
        self._path = table.absolute()
        self._by_day = by_day
        self._upsert = upsert
        needed("pyiceberg")

    def folder_of(self, batch_id: int) -> str:
        return f"data/{batch_id:010d}"

    def exists(self) -> bool:
        return (self._path / CATALOG_FILE).exists() and bool(open_catalog(self._path).table_exists(TABLE))

    def columns(self) -> ValueType:
        return row_type(self._table().schema().as_arrow())

    def application(self) -> str | None:
        return self._table().properties.get(APPLICATION)

    def create(self, application: str, columns: ValueType) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        catalog = open_catalog(self._path)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        with catalog.create_table_transaction(
            TABLE,
            schema=arrow_schema(columns),
            location=_uri(self._path),
            properties={APPLICATION: application},
        ) as transaction:
            if self._by_day:
                with transaction.update_spec() as spec:
                    by_day = needed("pyiceberg.transforms").DayTransform()
                    spec.add_field(TIMESTAMP, by_day, f"{TIMESTAMP}_day")

    def last_batch(self, application: str) -> int | None:
        properties = self._table().properties
        if properties.get(APPLICATION) != application or BATCH not in properties:
            return None
        return int(properties[BATCH])

    def commit(self, batch: Batch) -> None:
        said = {BATCH: str(batch.batch_id), ROWS: str(batch.rows)}
        with self._table().transaction() as transaction:
            transaction.set_properties({BATCH: said[BATCH]})
            if batch.change:
                with transaction.update_schema() as update:
                    update.union_by_name(arrow_schema(batch.change.columns))
            if self._upsert and batch.files:
                self._replace(transaction, batch, said)
            elif batch.files:
                paths = [_uri(self._path / file.path) for file in batch.files]
                transaction.add_files(paths, snapshot_properties=said, check_duplicate_files=False)
        if self._upsert:
            remove_staged(self._path / self.folder_of(batch.batch_id))  # their rows are in other files now

    def compact(self) -> None:
        raise PipelineError("--set compact: pyiceberg cannot merge the files of an Iceberg table; use delta")

    def commits(self) -> list[Commit]:
        found: dict[int, Commit] = {}
        for snapshot in self._table().metadata.snapshots:
            said = snapshot.summary.additional_properties
            if BATCH in said:
                number = int(said[BATCH])
                at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=UTC)
                found[number] = Commit(number, int(said[ROWS]), at)
        return list(found.values())

    def totals(self) -> Totals:
        table = self._table()
        files = table.inspect.files().to_pylist()
        snapshot = table.current_snapshot()
        return Totals(
            sum(one["record_count"] for one in files),
            len(files),
            sum(one["file_size_in_bytes"] for one in files),
            str(snapshot.snapshot_id) if snapshot is not None else "",
        )

    def _table(self) -> Any:
        return open_catalog(self._path).load_table(TABLE)

    def _replace(self, transaction: Any, batch: Batch, said: dict[str, str]) -> None:
        """Write the files that have rows of the batch's keys again, without these, and its newest rows.

        In one snapshot: one that deletes and another that appends would let readers see neither the old rows
        nor the new ones.
        """
        arrow = needed("pyiceberg.io.pyarrow")
        newest = newest_rows(self._path, batch.files)
        metadata, io = transaction.table_metadata, self._table().io
        reader = arrow.ArrowScan(
            metadata, io, metadata.schema(), needed("pyiceberg.expressions").AlwaysTrue()
        )
        is_replaced = needed("pyiceberg.expressions").In(KEY, newest.column(KEY).to_pylist())
        kept = newest.filter(needed("pyarrow.compute").invert(newest.column(DELETED)))
        new_rows = [kept.select(arrow_schema(batch.change.columns).names)]
        replaced: list[Any] = []
        for task in self._table().scan(row_filter=is_replaced).plan_files():
            rows = reader.to_table([task])
            others = without_keys(rows, newest)
            if others.num_rows < rows.num_rows:
                replaced.append(task.file)
                new_rows.append(others)
        with transaction.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
            for file in replaced:
                snapshot.delete_data_file(file)
            for rows in new_rows:
                if rows.num_rows:
                    # Transaction.append writes files with it too, but makes a snapshot of its own.
                    for file in arrow._dataframe_to_data_files(metadata, rows, io):
                        snapshot.append_data_file(file)


def _uri(path: Path) -> str:
    """Return a file's location as pyiceberg reads it, which does not decode ``%20``."""
    return f"file://{path}"
