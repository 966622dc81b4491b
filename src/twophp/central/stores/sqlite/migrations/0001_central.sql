-- The central ledger. A row stands under the number of its newest leaf, so what arrived last stands last: whoever pages
-- through the newest, or follows what arrives, reads the table from its end. Replacing a row moves it there.

CREATE TABLE head (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    size    INTEGER NOT NULL,     -- how many leaves the Merkle tree has
    at      INTEGER NOT NULL,     -- when the last of them arrived
    opened  INTEGER NOT NULL      -- how often the file was opened; each opening proves that a write is durable
) STRICT;
INSERT INTO head VALUES (1, 0, 0, 0);

CREATE TABLE entry (
    sequence               INTEGER PRIMARY KEY,
    client_correlation_id  TEXT    NOT NULL,
    server_correlation_id  TEXT    NOT NULL,
    service_ledger_id      TEXT    NOT NULL,
    service_endpoint       TEXT    NOT NULL,
    actor                  TEXT    NOT NULL CHECK (actor = 'client' OR actor = 'server'),
    source                 TEXT    NOT NULL,
    target                 TEXT    CHECK ((actor = 'client') = (target IS NOT NULL)),
    parent_reference_id    TEXT    NOT NULL CHECK (actor = 'client' OR parent_reference_id = client_correlation_id),
    phase                  TEXT    NOT NULL,
    phase_1_timestamp      INTEGER NOT NULL,
    phase_2_timestamp      INTEGER,
    ttl_ms                 INTEGER NOT NULL CHECK (ttl_ms > 0),
    outcome                TEXT,
    payload_ref            TEXT,
    sync_timestamp         INTEGER NOT NULL,
    transaction_reference  TEXT,
    version                INTEGER NOT NULL CHECK (version > 0),
    mode                   TEXT    NOT NULL,
    client_id_is_proxy     INTEGER NOT NULL,
    settled_at             INTEGER,
    request_digest         TEXT,
    client_hash            INTEGER NOT NULL,
    server_hash            INTEGER NOT NULL,
    parent_hash            INTEGER              -- where the parent is not the row's own client id, which is indexed
) STRICT;
-- Ids are long and random: an index over them would be as large as the table, and every row would change a page of its
-- own in each. So their CRC-32 is indexed, and whoever looks for an id compares the id as well. That there is one row for
-- (both ids, actor, writer) is decided by whoever holds the write lock (intake.py), and needs no index of its own.
CREATE INDEX entry_by_client_id ON entry (client_hash);
CREATE INDEX entry_by_server_id ON entry (server_hash);
CREATE INDEX entry_children ON entry (parent_hash) WHERE parent_hash IS NOT NULL;
-- The draft's four questions are these three and: what stalled, what a service initiated (§10.4).
CREATE INDEX entry_open ON entry (sequence) WHERE outcome IS NULL OR outcome = 'TTL_EXPIRED';
CREATE INDEX entry_initiated ON entry (source) WHERE actor = 'client';
CREATE INDEX entry_by_time ON entry (phase_1_timestamp);

-- The Merkle tree: 256 neighbouring hashes of every eighth level, the last of each level as far as it has come.
CREATE TABLE tile (
    level   INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    hashes  BLOB    NOT NULL,
    PRIMARY KEY (level, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE service (
    service_ledger_id  TEXT PRIMARY KEY,
    name               TEXT    NOT NULL,
    registered_at      INTEGER NOT NULL,
    last_sync_at       INTEGER,
    rows               INTEGER NOT NULL,
    pull_url           TEXT
) STRICT, WITHOUT ROWID;

-- Whose credential is whose: several may be one service's, as when one follows another.
CREATE TABLE credential (
    token_id           TEXT PRIMARY KEY,
    service_ledger_id  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE token (
    token_id      TEXT PRIMARY KEY,
    secret_hash   BLOB    NOT NULL UNIQUE,
    name          TEXT    NOT NULL,
    roles         TEXT    NOT NULL,     -- separated by spaces
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    revoked_at    INTEGER,
    last_used_at  INTEGER
) STRICT;

CREATE TABLE alarm (
    alarm_id               INTEGER PRIMARY KEY,
    at                     INTEGER NOT NULL,
    code                   TEXT    NOT NULL,
    service_ledger_id      TEXT    NOT NULL,
    client_correlation_id  TEXT    NOT NULL,
    server_correlation_id  TEXT    NOT NULL,
    detail                 TEXT    NOT NULL,
    -- Whoever sends the same again is alarmed about once.
    UNIQUE (code, service_ledger_id, client_correlation_id, server_correlation_id, detail)
) STRICT;

CREATE TABLE access (
    id      INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    who     TEXT    NOT NULL,
    role    TEXT    NOT NULL,
    method  TEXT    NOT NULL,
    path    TEXT    NOT NULL,
    status  INTEGER NOT NULL
) STRICT;
