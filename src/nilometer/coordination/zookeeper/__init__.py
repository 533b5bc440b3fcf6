"""The store for several machines: an ensemble of ZooKeeper servers, with the client library kazoo."""
