"""Makes an archive of an earlier version of the package, which the tests of upgrades run beside this one.

``python tests/support/upgrade/make_earlier_version.py COMMIT ARCHIVE`` packs what a broker needs of the
package at a commit into an archive beside this file: ``earlier_version.tar.xz``, and
``earlier_quorum.tar.xz``, one of the first versions whose brokers can keep the metadata themselves. The
archives are committed, so that the tests need neither the history of the repository nor a network. Make a new
one for each release, of the release's commit.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMIT_NAME = "COMMIT"
"""The file in the archive with the commit's id."""
WITHOUT = ("cli", "console", "kafka", "local", "pipeline", "simulation", "testing")
"""The parts of the package that a broker does not need."""


def main(commit: str, archive_name: str) -> None:
    identity = subprocess.run(["git", "rev-parse", commit], check=True, capture_output=True, text=True)
    paths = ["src/nilometer", *(f":!src/nilometer/{part}" for part in WITHOUT)]
    packed = subprocess.run(["git", "archive", commit, *paths], check=True, capture_output=True)
    with (
        lzma.open(HERE / archive_name, "wb", preset=9 | lzma.PRESET_EXTREME) as target,
        tarfile.open(fileobj=target, mode="w") as archive,
        tarfile.open(fileobj=io.BytesIO(packed.stdout)) as source,
    ):
        _add(archive, COMMIT_NAME, identity.stdout.encode())
        for member in sorted(source.getmembers(), key=lambda one: one.name):
            if member.isfile():
                file = source.extractfile(member)
                assert file is not None, "it is a file"
                _add(archive, member.name.removeprefix("src/"), file.read())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file without owner or time, so that the same commit gives the same archive."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
