-- Every row was taken over. The old journal stays: its lines are history.
DROP TABLE widening;
DROP TABLE old_intent;
DROP TABLE old_entry;
DROP TABLE old_seal;

-- The logical key, used up once (REG-1-05). Led by the client's id, it also finds the pair.
CREATE UNIQUE INDEX IF NOT EXISTS intent_key ON intent (client_hash, who);
-- What is open is found by its phase, what is due of it by its time; an owner's among those that run.
CREATE INDEX IF NOT EXISTS intent_open ON intent (phase, due_at)
WHERE phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING' OR phase = 'TTL_EXPIRED';
-- What has ended and is kept for a while.
CREATE INDEX IF NOT EXISTS intent_kept ON intent (due_at)
WHERE due_at IS NOT NULL AND (phase = 'COMMITTED' OR phase = 'FAILED' OR phase = 'ABANDONED');
-- What the central ledger has yet to hear of, and what it has had for long enough.
CREATE INDEX IF NOT EXISTS intent_unsynced ON intent (id) WHERE sync_timestamp IS NULL;
CREATE INDEX IF NOT EXISTS intent_forgotten ON intent (sync_timestamp) WHERE forgotten = 1;
-- Whoever polls an asynchronous intent at its Location knows the server's id alone (draft §5.3.3).
CREATE INDEX IF NOT EXISTS intent_by_server_id ON intent (server_correlation_id) WHERE mode = 'async';
