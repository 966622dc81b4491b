"""Where the central ledger keeps its rows: SQLite or PostgreSQL.

``store`` is all that is the same on both, and each driver is a package with its migrations and its own SQL. The two
drivers do not import each other, and the one for PostgreSQL imports nothing of SQLite's.
"""
