"""The flows: how a decision becomes durable, and what follows from it."""
