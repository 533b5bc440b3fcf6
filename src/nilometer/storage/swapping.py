"""Replacing segments by the cleaned segment made from them, atomically: a crash leaves either.

The steps, without interruption on the thread of the log's owner:

1. ``<base>.*.cleaned`` → ``.swap``, for the log, its indexes and the manifest, which lists the replaced
   segments. While one ``.cleaned`` file is left, a restart undoes the replacement.
2. The replaced segments → ``.deleted``. From here on a restart completes the replacement.
3. ``.swap`` → final names, the log last; then the manifest is removed.

Renames in one folder reach the disk in the order in which they were made, so no sync is needed in between:
a power failure leaves some prefix of these steps, as a process crash does. Kafka's own ``.swap`` files have
no manifest; the range of offsets that they replace is then taken from their last batch, as Kafka does.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.errors import KafkaError

VERSION = 0


class Replacement(NamedTuple):
    """A cleaned segment that is complete and durable under ``.cleaned`` names."""

    folder: str
    inputs: tuple[int, ...]
    """Base offsets of the segments to be replaced, in order; the new one has the first of them."""
    outputs: tuple[str, ...]
    """Suffixes of the cleaned segment's files."""
    size: int

    @property
    def base_offset(self) -> int:
        return self.inputs[0]

    def path(self, suffix: str) -> str:
        return posixpath.join(self.folder, names.offset_name(self.base_offset, suffix))


class Manifest(NamedTuple):
    inputs: tuple[int, ...]
    outputs: tuple[str, ...]


def encode_manifest(inputs: Sequence[int], outputs: Sequence[str]) -> bytes:
    lines = (str(VERSION), " ".join(map(str, inputs)), " ".join(outputs))
    return "".join(f"{line}\n" for line in lines).encode()


def decode_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest file; None if ``data`` is not a valid manifest."""
    try:
        version, inputs, outputs, end = data.decode().split("\n")
        if version != str(VERSION) or end or not inputs or not outputs:
            return None
        return Manifest(tuple(map(int, inputs.split())), tuple(outputs.split()))
    except ValueError:
        return None


# ── while the log is in use ─────────────────────────────────────────────────────────────────────────


def commit(disk: Disk, replacement: Replacement) -> None:
    """Rename the files from ``.cleaned`` to ``.swap`` (step 1). Raises OSError."""
    for suffix in (*replacement.outputs, names.SWAP_INPUTS_SUFFIX):
        path = replacement.path(suffix)
        disk.rename(path + names.CLEANED_SUFFIX, path + names.SWAP_SUFFIX)


def put_in_place(disk: Disk, replacement: Replacement) -> None:
    """Rename the files from ``.swap`` to their final names (step 3). Raises OSError."""
    finish(disk, replacement.folder, replacement.base_offset, replacement.outputs)


def finish(disk: Disk, folder: str, base_offset: int, outputs: Sequence[str]) -> None:
    """Rename the ``outputs`` (suffixes) to their final names, the log last, and remove the manifest."""
    for suffix in sorted(outputs, key=lambda suffix: suffix == names.LOG_SUFFIX):
        path = posixpath.join(folder, names.offset_name(base_offset, suffix))
        disk.rename(path + names.SWAP_SUFFIX, path)
    manifest = posixpath.join(folder, names.offset_name(base_offset, names.SWAP_INPUTS_SUFFIX))
    disk.remove(manifest + names.SWAP_SUFFIX)


# ── when the log is opened ──────────────────────────────────────────────────────────────────────────


def complete_interrupted_swaps(disk: Disk, folder: str) -> bool:
    """Remove ``.deleted`` and ``.cleaned`` files; let ``.swap`` files replace their segments.

    Returns whether a replacement was completed, which means that this log was compacted.
    """
    cleaned: list[int] = []
    swaps: dict[int, list[str]] = {}
    file_names = disk.list_directory(folder)
    for name in file_names:
        stem, suffix = posixpath.splitext(name)
        if suffix not in (names.SWAP_SUFFIX, names.CLEANED_SUFFIX):
            continue
        if (parsed := names.parse_offset_name(stem)) is None:
            continue
        if suffix == names.SWAP_SUFFIX:
            swaps.setdefault(parsed[0], []).append(parsed[1])
        else:
            cleaned.append(parsed[0])
    # Swap files at or above a leftover .cleaned file belong to an incomplete replacement, or to an incomplete
    # split of one segment into several.
    for base_offset in [base for base in swaps if cleaned and base >= min(cleaned)]:
        for suffix in swaps.pop(base_offset):
            disk.remove(_swap_path(folder, base_offset, suffix))
    for name in file_names:
        suffix = posixpath.splitext(name)[1]
        if suffix in (names.DELETED_SUFFIX, names.CLEANED_SUFFIX, names.TEMPORARY_SUFFIX):
            disk.remove(posixpath.join(folder, name))
    has_completed = bool(swaps)
    named = {base: found for base in swaps if (found := _read_manifest(disk, folder, base)) is not None}
    for base_offset, manifest in named.items():
        _complete(disk, folder, base_offset, manifest, swaps.pop(base_offset))
    if swaps:
        _complete_unnamed(disk, folder, swaps)
    return has_completed


def _swap_path(folder: str, base_offset: int, suffix: str) -> str:
    return posixpath.join(folder, names.offset_name(base_offset, suffix)) + names.SWAP_SUFFIX


def _read_manifest(disk: Disk, folder: str, base_offset: int) -> Manifest | None:
    path = _swap_path(folder, base_offset, names.SWAP_INPUTS_SUFFIX)
    return decode_manifest(disk.read_file(path)) if disk.exists(path) else None


def _complete(disk: Disk, folder: str, base_offset: int, manifest: Manifest, found: Sequence[str]) -> None:
    """Complete one replacement; ``found`` are the suffixes of the files still named ``.swap``.

    If an output has its final name already, all inputs were removed before, and only renames are left.
    """
    left = [suffix for suffix in manifest.outputs if suffix in found]
    if len(left) == len(manifest.outputs):
        for base in manifest.inputs:
            _remove_segment(disk, folder, base)
    finish(disk, folder, base_offset, left)


def _complete_unnamed(disk: Disk, folder: str, swaps: dict[int, list[str]]) -> None:
    logs = [base for base, suffixes in swaps.items() if names.LOG_SUFFIX in suffixes]
    if logs:
        end = max(_next_offset(disk, _swap_path(folder, base, names.LOG_SUFFIX), base) for base in logs)
        for name in disk.list_directory(folder):
            parsed = names.parse_offset_name(name)
            if parsed and min(logs) <= parsed[0] < end and parsed[1] in names.SEGMENT_SUFFIXES:
                disk.remove(posixpath.join(folder, name))
    for base_offset, suffixes in swaps.items():
        for suffix in suffixes:
            path = _swap_path(folder, base_offset, suffix)
            disk.rename(path, path.removesuffix(names.SWAP_SUFFIX))


def _remove_segment(disk: Disk, folder: str, base_offset: int) -> None:
    for suffix in names.SEGMENT_SUFFIXES:
        path = posixpath.join(folder, names.offset_name(base_offset, suffix))
        if disk.exists(path):
            disk.remove(path)


def _next_offset(disk: Disk, path: str, base_offset: int) -> int:
    file = disk.open(path, writable=False)
    next_offset = base_offset
    try:
        for batch in scan(file, 0, file.size()):
            next_offset = batch.header.next_offset
    except KafkaError:
        pass  # the last readable batch is enough: loading the segment checks the rest
    finally:
        file.close()
    return next_offset
