-- What a process that died has left: found by its owner. Only what is unfinished has one.
CREATE INDEX IF NOT EXISTS intent_owner ON intent (owner) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS call_owner ON call (owner) WHERE owner > '';
