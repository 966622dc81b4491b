"""Tier 3: the central ledger (draft §9.4). It gathers every service's rows, answers the draft's questions, proves."""
