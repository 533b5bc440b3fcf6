"""Streams groups (KIP-1071): Kafka Streams applications whose tasks the group coordinator assigns.

A *subtopology* reads source topics, among them repartition topics, and may keep state, of which changelog
topics have a copy. A *task* is a subtopology for one partition of its source topics: (subtopology id,
partition). An *active* task processes records; a *standby* task only keeps a copy of the state. (Members may
have *warm-up* tasks, which become active ones; the coordinator gives none, as that of Apache Kafka 4.4.)
"""
