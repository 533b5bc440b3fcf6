"""The ids that a cluster may be given: its folder in remote storage has this name."""

from __future__ import annotations

import pytest

from nilometer.identifiers import is_cluster_id
from nilometer.testing import Cluster


@pytest.mark.parametrize("text", ["MkU3OEVBNTcwNTJENDM2Qk", "5L6g3nShT-eMCtK--X86sw", "test_1.eu", "a" * 255])
def test_names_of_folders_are_taken(text: str) -> None:
    assert is_cluster_id(text)
    Cluster(cluster_id=text)


@pytest.mark.parametrize("text", ["", ".", "..", "prod/eu", "prod@eu", "a b", "a\n", "\u00e9", "a" * 256])
def test_others_are_refused(text: str) -> None:
    assert not is_cluster_id(text)
    with pytest.raises(ValueError, match="is no cluster id"):
        Cluster(cluster_id=text)
