"""The settings of clients, with Kafka's keys: how a key is declared, and the keys that all clients have."""
