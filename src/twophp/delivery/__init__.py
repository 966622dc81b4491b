"""What a service sends by itself: jobs of the outbox, delivered at least once, through one egress gate.

Callbacks, hooks and webhooks are messages of the outbox. Every outgoing call goes through ``egress``, which judges the
URL and every address it resolves to. Nothing here decides about intents, and nothing here knows an edge.
"""
