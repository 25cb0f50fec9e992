"""Distillation of a draft from the target: offline over epochs, online while it serves.

    offline    on recorded answers, or on tokens that the draft helps to write (``sources``), then measured on held-out requests
    online     along a stream of recorded requests (``traffic``), or live beside the target (``live``)
    learning   one update: logits, loss, micro-batches; the same for all
    jobs       what a cell of the workflow runs: every variant of its settings

Acceptance is measured by replay (``draftlab.engine.replay``): the target answers each request once, and never runs for it again.
"""
