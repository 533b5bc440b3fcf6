"""The coordination store: broker sessions, a shared sequence of entries, and a signal of changes.

The content of entries is opaque to it. In brief (`store.py` has the rules by name)::

    store = make_store("local", runtime, local_folder=f"{data}/coordination", session_timeout_ms=6000)
    await store.open()                                   # StoreRefused / StoreUnavailable
    store.cluster_id                                     # made by the first to open it
    session = await store.register(broker_id, payload)   # BrokerIdInUse
    session.name                                         # SessionName(broker_id, incarnation)
    session.is_live()                                    # cheap; check before leading or serving
    session.lost, await session.wait_lost()              # stop serving, then register again

    seen = -1
    while True:
        seen = await store.wait_changed(seen)            # returns at once the first time
        for entry in await store.read(next_number, 100): # EntriesRetired -> read_snapshot()
            ...                                          # fold entry.data; next_number = entry.number + 1
        live = await store.sessions()                    # [SessionInfo(broker_id, incarnation, payload)]
        if await store.controller() is None:
            await store.claim_controller()

    await store.append(next_number, data)                # False: another entry has that number
    await store.write_snapshot(next_number, data)        # replaces all entries below next_number
    await store.close()                                  # ends the session at once

All failures are CoordinationError. An append raises EntryTooLarge, SessionLost, StoreUnavailable (nothing
was written) or OutcomeUnknown (read again to find out).
"""
