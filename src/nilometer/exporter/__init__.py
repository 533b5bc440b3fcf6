"""``nilometer exporter``: the lag of consumer groups as metrics, under the names of kafka_exporter.

A coordinator knows what its groups have committed, but not the high watermarks of partitions that other
brokers lead. So the lag is measured by a client, which asks all brokers.
"""
