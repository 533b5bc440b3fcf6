"""A small-scope model check of the replication core: the product's own code, in every order of events.

:class:`World` (:mod:`world`) is a model of two or three broker processes with the real
:class:`~nilometer.replication.replica.Replica`, a log of (epoch, value), a controller and a network that
delays, loses and repeats messages. :func:`explore` (:mod:`explorer`) visits every reachable state, breadth
first, so that it finds a shortest counterexample; ``properties.violation`` checks each state.
:class:`SettingsWorld` (:mod:`settings`) is a separate model, of the settings of topics and brokers.
:class:`ShareWorld` (:mod:`share`) is another: of a share partition, its leaders, its state and its members.
:class:`TierWorld` (:mod:`tier`) is one more: of a tiered partition, its leaders, followers and object store.
:class:`ClaimWorld` (:mod:`tier_claims`) has two clusters that use one object store.
"""
