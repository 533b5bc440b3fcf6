"""A broker that reads metadata records up to format 2, and does not know the feature of later formats.

``python tests/support/brokers/earlier_version.py …`` takes the arguments of ``python -m nilometer.broker``.
It is this version's code with the supported features and formats of the earlier one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nilometer.broker.__main__ import main
from nilometer.cluster.features import LEVELS_OF_NEW_CLUSTERS, METADATA_FORMAT, SUPPORTED_FEATURES

PROGRAM = Path(__file__).resolve()

OF_THE_EARLIER_VERSION = {
    "FORMAT_VERSION": 2,
    "SUPPORTED_FEATURES": tuple(each for each in SUPPORTED_FEATURES if each.name != METADATA_FORMAT),
    "LEVELS_OF_NEW_CLUSTERS": {
        name: level for name, level in LEVELS_OF_NEW_CLUSTERS.items() if name != METADATA_FORMAT
    },
}


def _go_back() -> None:
    """Replace the constants in every module that has imported them."""
    modules = [module for name, module in sys.modules.items() if name.startswith("nilometer.")]
    for module in modules:
        for name in OF_THE_EARLIER_VERSION.keys() & vars(module).keys():
            setattr(module, name, OF_THE_EARLIER_VERSION[name])


if __name__ == "__main__":
    _go_back()
    sys.exit(main())
