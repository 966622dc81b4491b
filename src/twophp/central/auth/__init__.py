"""Who may ask the central ledger what: roles, tokens, sessions and OpenID Connect.

Nobody is allowed what no role of theirs gives. Nothing here reads ledger rows.
"""
