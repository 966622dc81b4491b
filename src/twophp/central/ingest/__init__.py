"""How rows come into the central ledger: pushed by services or pulled from them.

``intake`` decides what becomes of a batch, for every database alike. Nothing here draws pages or answers questions.
"""
