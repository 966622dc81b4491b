"""Where the central ledger keeps its rows: SQLite or PostgreSQL.

Each driver is a package with its migrations and named SQL; what they share stands beside them. The two drivers do not
import each other, and neither imports a service's own store.
"""
