"""Where records live: memory for tests, SQLite by default. ``testing`` is the contract every store must meet."""
