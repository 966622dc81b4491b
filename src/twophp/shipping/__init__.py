"""Tier 2: a ledger's rows on their way to the central ledger.

A shipment is an obligation, so rows that do not arrive are found by the leak scan. Nothing here is on a request's path,
and nothing here knows an edge or a driver.
"""
