"""The store's kernel: what a batch of commands changes, decided without I/O. Drivers load keys and write rows."""
