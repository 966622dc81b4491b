"""The store's kernel by itself: no driver, no I/O."""
