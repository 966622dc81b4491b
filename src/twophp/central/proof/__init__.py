"""The Merkle tree over accepted rows: heads, inclusion and consistency.

Pure functions over hashes. Nothing here reads a database; the stores keep the leaves.
"""
