"""The reading of Parquet files, as far as this project's tests use it."""

from pathlib import Path

from pyarrow import Table

def read_table(source: str | Path) -> Table: ...
