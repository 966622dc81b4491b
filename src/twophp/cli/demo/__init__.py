"""``twophp demo``: the draft's fan-out chain (§10.3) as real processes, told so that a newcomer understands it."""
