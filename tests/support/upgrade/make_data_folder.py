"""Makes the data folder of the earlier version: in ``tests``, ``python -m support.upgrade.make_data_folder``.

The earlier version writes it, with what :mod:`~support.upgrade.filled_folder` describes, in two runs of the
broker; it is packed into ``data_folder.tar.xz``. Make a new one when ``earlier_version.tar.xz`` is new.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from ..brokers.nilometer_broker import NilometerBroker
from ..unpacking import unpack
from .earlier_package import DATA_FOLDER, PACKAGE, program
from .filled_folder import SETTINGS, check, create_topics, write


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        broker = NilometerBroker(data, SETTINGS)
        broker.program = program(unpack(PACKAGE, Path(folder) / "package"))
        with broker:
            create_topics(broker.bootstrap)
            write(broker.bootstrap)
        with broker:  # another leader epoch
            check(broker.bootstrap)
        with tarfile.open(DATA_FOLDER, "w:xz", preset=9) as archive:
            archive.add(data, ".", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
