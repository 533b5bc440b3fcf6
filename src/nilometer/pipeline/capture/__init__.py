"""Captures the changes of a database's table into a topic, by Debezium in a worker of Kafka Connect.

``source`` is what a capture needs of a database; ``postgres`` and ``mysql`` are the databases. ``worker``
runs Kafka Connect, ``jars`` downloads it and Debezium, and ``capture`` is the command's work.
"""
