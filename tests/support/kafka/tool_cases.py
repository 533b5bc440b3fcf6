"""What Kafka's command-line tools are asked of a broker, in order: each case sees what those before it did.

``{broker}`` stands for the broker's address, ``{folder}`` for a folder of files, ``{topic_id}`` for the id of
the topic ``tools``, ``{hanging}`` for the first offset of a transaction that its coordinator does not know.
"""

from __future__ import annotations

from .cluster_tool_cases import CLUSTER, REPLICAS, SECURITY, TRANSACTIONS
from .data_tool_cases import CONFIGS, GROUPS, RECORDS, TOPICS

CASES = (*TOPICS, *CONFIGS, *RECORDS, *GROUPS, *REPLICAS, *CLUSTER, *SECURITY, *TRANSACTIONS)
