"""The cluster's metadata: the records of the metadata log, the image, and the controller's decisions.

The *metadata log* is a sequence of numbered entries; an entry has records, each of which describes one
change. The *image* is the metadata after these changes. Every broker reads the same entries and *folds* them,
that is, applies them in order to its image::

    image = ClusterImage()                                  # or from_snapshot(decode_snapshot(bytes))
    delta = image.apply_entry(number, decode_entry(bytes))  # the changes; empty if it was not accepted

The holder of ``/controller`` turns requests and events into records. A change is only in force once its entry
is folded and accepted::

    entry = controllership_entry(image, broker_id, incarnation, entropy)  # append, fold; then controller
    decision = decide_create_topics(image, topics, ...)                   # the image is unchanged
    for entry in entries_of(decision.units, image.controllership): ...    # append each, fold each
    decision.reply                                                        # send it once all were accepted

``records`` defines the possible changes, ``image`` the state, ``controller`` decides the changes. No clock,
no I/O; randomness is an argument. The coordination store keeps the entries.
"""
