-- What the central ledger has had for long enough is found by the time of its arrival there.
CREATE INDEX entry_synced ON entry (sync_timestamp) WHERE sync_timestamp IS NOT NULL;
