"""A data folder that was moved or copied: where it was before, and the paths in its files corrected.

The files that `nilometer up` writes have absolute paths of the folder. After a move these lead nowhere, and
after a copy to the data of the original: brokers of the copy would serve that.

Paths outside the folder are left as they are. The former place shows in ``server.properties``: its
``log.dirs`` end in ``broker-<id>/logs``, below a folder that is not this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nilometer.local.private_files import write_private
from nilometer.storage.names import META_PROPERTIES

SETTINGS = "server.properties"
COORDINATION = "coordination"


class CannotSettle(Exception):
    """The files of a moved or copied data folder cannot be corrected; the message says what to do."""


def former_place(data_dir: Path, broker_ids: Sequence[int]) -> Path | None:
    """Return the absolute path that the folder had when its brokers were configured; None: its present one.

    ``data_dir`` is absolute.
    """
    for broker_id in broker_ids:
        text = (data_dir / f"broker-{broker_id}" / SETTINGS).read_text(encoding="utf-8")
        written = re.search(rf"^log\.dirs=(/.*)/broker-{broker_id}/logs$", text, re.MULTILINE)
        if written is None:
            continue
        place = Path(written[1])
        if place == data_dir or (place.exists() and place.samefile(data_dir)):
            continue
        has_store = f"\nnilometer.coordination=local:{place / COORDINATION}\n" in text
        if has_store or (data_dir / f"broker-{broker_id}" / "logs" / META_PROPERTIES).exists():
            return place
    return None


def corrected(text: str, former: Path, data_dir: Path) -> str:
    """Return the text of a properties file with the paths below ``former`` replaced by those below
    ``data_dir``."""
    return re.sub(rf"(?<![\w./-]){re.escape(str(former))}(?=/)", lambda _: str(data_dir), text)


def correct_paths(data_dir: Path, former: Path, broker_ids: Sequence[int]) -> None:
    """Correct the paths in all files, and forget the processes of the former place.

    Raises CannotSettle, before anything is changed.
    """
    missing = list(_missing(data_dir, former, broker_ids))
    if missing:
        raise CannotSettle(
            f"{data_dir} has the settings of the cluster in {former}, but not all of its data: "
            f"{', '.join(missing)} is missing. Copy the whole folder, with its brokers stopped"
        )
    for broker_id in broker_ids:
        for name in ("process.json", "status.json"):
            (data_dir / f"broker-{broker_id}" / name).unlink(missing_ok=True)
    for path in sorted(data_dir.glob("security/*.properties")) + sorted(
        data_dir.glob(f"broker-*/{SETTINGS}")
    ):
        write_private(path, corrected(path.read_text(encoding="utf-8"), former, data_dir))


def _missing(data_dir: Path, former: Path, broker_ids: Sequence[int]) -> Iterator[str]:
    """Yield what the settings name below the former place, and is not here."""
    for broker_id in broker_ids:
        folder = data_dir / f"broker-{broker_id}"
        text = corrected((folder / SETTINGS).read_text(encoding="utf-8"), former, data_dir)
        if not (folder / "logs" / META_PROPERTIES).exists() and f"\nlog.dirs={folder / 'logs'}\n" in text:
            yield str(folder / "logs" / META_PROPERTIES)
        store = data_dir / COORDINATION
        if not store.exists() and f"\nnilometer.coordination=local:{store}\n" in text:
            yield str(store)
