"""The web console of ``nilometer console``: pages that show a cluster as its brokers describe it, live.

``views`` turns answers of the brokers into plain values (pure). ``reading`` asks the brokers, once for all
browsers that watch the same page. ``web`` makes HTML of the values and sends it again when it changes;
``templates`` and ``static`` are its files. ``serving`` says where it may be served and with what protection,
``server`` serves it.
"""
