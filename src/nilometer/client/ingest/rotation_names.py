"""Recognises the names of rotated files. Pure.

``app.log`` becomes ``app.log.1``, ``app.log-20260131``, ``app.log.2.gz``, ``app-20260131.log``,
``app.1.log``, ``app.log.old`` and the like, in the same folder.
"""

from __future__ import annotations

import posixpath
import re

GZIP_SUFFIX = ".gz"
UNREADABLE_SUFFIXES = (".xz", ".bz2", ".zst", ".lz4", ".lzma", ".Z", ".zip", ".br")
"""Suffixes of compression formats that ingest cannot read."""

_MARK = r"(?:[._-](?:[0-9][0-9TZ_:.+-]*|old|prev|bak))+"
"""The marks that rotation adds to a name: a number, a date, "old"."""
_MARKED = re.compile(_MARK)
_SEPARATOR = re.compile(r"[._~-]")
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_AT_END = re.compile(_MARK + "$")
_BEFORE_EXTENSION = re.compile(rf"(?<=.){_MARK}(?=\.[A-Za-z][A-Za-z0-9]*$)")


def family(name: str) -> str:
    """Return the name without rotation marks: ``app.log`` for ``app.log.2.gz`` and for ``app-1.log``."""
    bare = name.removesuffix(GZIP_SUFFIX)
    return _BEFORE_EXTENSION.sub("", _AT_END.sub("", bare) or bare)


def possible_originals(path: str) -> list[str]:
    """Return the paths of files of which ``path`` may be a copy or a rotated file; most do not exist.

    They are its name up to a separator, with or without its extension.
    """
    folder, name = posixpath.split(path)
    bare = name.removesuffix(GZIP_SUFFIX)
    extension = _EXTENSION.search(bare)
    names = [bare]
    for cut in (found.start() for found in _SEPARATOR.finditer(bare, 1)):
        names.append(bare[:cut])
        if extension is not None and cut < extension.start():
            names.append(bare[:cut] + extension.group())
    return [posixpath.join(folder, one) for one in dict.fromkeys(names) if one != name]


def is_rotation_name(path: str, original: str) -> bool:
    """Whether rotation may have made ``path`` from ``original``, by their names; contents must decide."""
    folder, name = posixpath.split(path)
    original_folder, original_name = posixpath.split(original)
    return folder == original_folder and (
        name.startswith(original_name) or family(name) == family(original_name)
    )


def is_derived(path: str, original: str) -> bool:
    """Whether the name ``path`` is that of ``original`` with rotation marks added, and nothing else."""
    folder, name = posixpath.split(path)
    original_folder, original_name = posixpath.split(original)
    if folder != original_folder or name == original_name:
        return False
    bare = name.removesuffix(GZIP_SUFFIX)
    stem, extension = posixpath.splitext(original_name)
    return (
        bare == original_name
        or _is_marked(bare, original_name, "")
        or (bool(extension) and _is_marked(bare, stem, extension))
    )


def _is_marked(name: str, begin: str, end: str) -> bool:
    if not (name.startswith(begin) and name.endswith(end)):
        return False
    return _MARKED.fullmatch(name[len(begin) : len(name) - len(end)]) is not None
