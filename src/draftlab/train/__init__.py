"""Distillation of a draft from the target: offline over epochs, online while it serves.

    offline    epochs over recorded answers, or over tokens that the draft helps to write (``sources``), measured on held-out requests
    online     along a stream of recorded requests (``traffic``), or together with the target (``live``)
    learning   updates of a draft on answers, the same for every source and loss
    training   the optimisation loop with its checkpoints

Acceptance is measured by replay (``draftlab.engine.replay``): the target answers each request only once.
"""
