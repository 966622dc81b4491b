"""Who may ask the central ledger what: roles, tokens, sessions and OpenID Connect.

A principal may do only what one of its roles allows. Nothing here reads ledger rows.
"""
