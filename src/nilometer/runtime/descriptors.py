"""How the descriptors of the process are divided: a part is kept for files, whatever clients do.

Without a descriptor no log can be written, and a log directory that cannot be written is taken offline: a
client that only opens connections would stop the broker.
"""

from __future__ import annotations

import resource

FOR_FILES_MAX = 1_280
"""At most so many are kept for files; of few descriptors the half."""


def descriptors_max() -> int:
    """Return how many descriptors the process may have now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if limit == resource.RLIM_INFINITY else limit


def kept_for_files() -> int:
    """Return how many descriptors are for files; the others are for connections."""
    return min(FOR_FILES_MAX, descriptors_max() // 2)


def open_files_max() -> int:
    """Return how many files may be kept open; some are needed for a moment beside them."""
    return kept_for_files() * 4 // 5
