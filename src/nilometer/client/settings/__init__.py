"""The configuration of clients, with Kafka's keys: how a key is declared, and the keys of all clients."""
