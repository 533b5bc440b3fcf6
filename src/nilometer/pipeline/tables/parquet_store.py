"""Plain Parquet files with a manifest per batch, for readers that know neither Delta Lake nor Iceberg.

A batch is committed by its manifest, ``_commits/0000000012.json``, which names its files. Then the folder of
its files is renamed from ``_staged`` to ``data``: a reader of all files below ``data`` sees each batch whole
or not at all, and never twice. A manifest whose folder was not renamed yet is completed by the next run.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.schemas import json_schema_of, parse_json_schema
from nilometer.pipeline.tables.staged_files import write_whole
from nilometer.pipeline.tables.table_store import Batch, Commit, Totals, arrow_schema
from nilometer.pipeline.tables.values import ValueType

COMMITS: Final = "_commits"
DATA: Final = "data"
STAGED: Final = "_staged"
_CREATED: Final = "created.json"


class ParquetStore:
    def __init__(self, table: Path) -> None:
        self._path = table

    def folder_of(self, batch_id: int) -> str:
        return f"{STAGED}/{batch_id:010d}"

    def exists(self) -> bool:
        return (self._path / COMMITS / _CREATED).exists()

    def columns(self) -> ValueType:
        newest = self._newest() or self._created()
        return parse_json_schema(json.dumps(newest["schema"]))

    def application(self) -> str | None:
        return self._created()["application"]

    def create(self, application: str, columns: ValueType) -> None:
        (self._path / COMMITS).mkdir(parents=True, exist_ok=True)
        (self._path / DATA).mkdir(exist_ok=True)
        said = {"application": application, "schema": json_schema_of(columns)}
        write_whole(self._path / COMMITS / _CREATED, said)

    def last_batch(self, application: str) -> int | None:
        newest = self._newest()
        if newest is None or newest["application"] != application:
            return None
        self._publish(newest["batch"])
        return newest["batch"]

    def commit(self, batch: Batch) -> None:
        files = [{**asdict(file), "path": file.path.replace(STAGED, DATA, 1)} for file in batch.files]
        manifest = {
            "batch": batch.batch_id,
            "application": batch.application,
            "at": datetime.now(UTC).isoformat(),
            "schema": json_schema_of(batch.change.columns),
            "files": files,
        }
        write_whole(self._path / COMMITS / f"{batch.batch_id:010d}.json", manifest)
        self._publish(batch.batch_id)

    def compact(self) -> None:
        raise PipelineError("--set compact: the files of a Parquet table are not merged; use delta")

    def commits(self) -> list[Commit]:
        return [
            Commit(
                one["batch"], sum(file["rows"] for file in one["files"]), datetime.fromisoformat(one["at"])
            )
            for one in self._manifests()
        ]

    def totals(self) -> Totals:
        manifests = self._manifests()
        files = [file for one in manifests for file in one["files"]]
        version = str(manifests[-1]["batch"]) if manifests else ""
        return Totals(
            sum(one["rows"] for one in files), len(files), sum(one["size"] for one in files), version
        )

    def files(self) -> list[Path]:
        """Return the files of all committed batches, in the order of the batches."""
        return [self._path / file["path"] for one in self._manifests() for file in one["files"]]

    def dataset(self) -> Any:
        """Return the rows of all committed batches, with the newest columns, as an Arrow dataset."""
        files = [str(path) for path in self.files()]
        schema: Any = arrow_schema(self.columns())
        return import_module("pyarrow.dataset").dataset(files, schema=schema, format="parquet")

    def _created(self) -> dict[str, Any]:
        return json.loads((self._path / COMMITS / _CREATED).read_text(encoding="utf-8"))

    def _newest(self) -> dict[str, Any] | None:
        paths = sorted((self._path / COMMITS).glob("[0-9]*.json"))
        return json.loads(paths[-1].read_text(encoding="utf-8")) if paths else None

    def _manifests(self) -> list[dict[str, Any]]:
        paths = sorted((self._path / COMMITS).glob("[0-9]*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def _publish(self, batch_id: int) -> None:
        staged = self._path / self.folder_of(batch_id)
        if staged.exists():
            staged.rename(self._path / DATA / staged.name)
