"""The options of commands that read brokers' folders, and what they name."""

from __future__ import annotations

from pathlib import Path

import click

from nilometer.cli.cluster.broker_commands import DEFAULT_DATA_DIR
from nilometer.local.local_cluster import LocalCluster
from nilometer.pipeline.errors import PipelineError

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder of a local cluster. [default: {DEFAULT_DATA_DIR}]",
)
log_dirs_option = click.option(
    "--log-dirs",
    metavar="DIR[,…]",
    help="Log directories of brokers, copies of them, or folders of partitions.",
)


def chosen_places(data_dir: Path | None, log_dirs: str | None) -> list[str]:
    """Return the folders that --data-dir or --log-dirs names. Raises UsageError, PipelineError."""
    if data_dir is not None and log_dirs is not None:
        raise click.UsageError("give only one of --data-dir and --log-dirs")
    if log_dirs is None:
        return log_dirs_of(data_dir or Path(DEFAULT_DATA_DIR))
    places = [one.strip() for one in log_dirs.split(",") if one.strip()]
    if not places:
        raise click.UsageError("--log-dirs names no folder")
    return places


def log_dirs_of(data_dir: Path) -> list[str]:
    """Return the log directories of a local cluster's brokers. Raises PipelineError if there are none."""
    cluster = LocalCluster(data_dir)
    found: list[str] = []
    for broker_id in cluster.broker_ids():
        properties = cluster.settings(broker_id)
        value = properties.get("log.dirs") or properties.get("log.dir") or ""
        found += [one.strip() for one in value.split(",") if one.strip() and Path(one.strip()).is_dir()]
    if not found:
        raise PipelineError(
            f"there is no cluster in {data_dir}: give its folder with --data-dir, or the brokers' log "
            "directories with --log-dirs"
        )
    return found
