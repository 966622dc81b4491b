-- One wide row for each intent, one link of the journal for each batch (ADR 33). This step only makes the new tables and
-- puts the old ones aside: from here on no older twophp writes to the file. The rows follow in bounded steps (``widening``),
-- and 0014 ends it. While the schema is 13, readers refuse the file as one that is still to be migrated.

ALTER TABLE intent RENAME TO old_intent;
ALTER TABLE entry RENAME TO old_entry;
ALTER TABLE seal RENAME TO old_seal;
ALTER TABLE journal RENAME TO old_journal;

-- The record, its ledger row and its small sealed parts. What is not the record's stands after it, and what may be large
-- stands last. A forgotten intent keeps its row for the ledger until that is purged; it no longer holds its keys.
CREATE TABLE intent (
    id                     INTEGER PRIMARY KEY,
    client_correlation_id  TEXT    NOT NULL,
    server_correlation_id  TEXT    NOT NULL,
    principal              TEXT    NOT NULL,
    replay_key             TEXT    NOT NULL,
    callback               TEXT    NOT NULL,
    client_id_is_proxy     INTEGER NOT NULL,
    mode                   TEXT    NOT NULL,
    service_endpoint       TEXT    NOT NULL,
    path                   TEXT    NOT NULL,
    method                 TEXT    NOT NULL,
    received_at            INTEGER NOT NULL,
    ttl_ms                 INTEGER NOT NULL CHECK (ttl_ms > 0),
    delta_ms               INTEGER NOT NULL CHECK (delta_ms >= 0),
    counted_bytes          INTEGER,          -- what it counts for in its principal's quota while it is open
    phase                  TEXT    NOT NULL CHECK (
        phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING' OR phase = 'COMMITTED' OR phase = 'FAILED'
        OR phase = 'TTL_EXPIRED' OR phase = 'ABANDONED'),
    version                INTEGER NOT NULL CHECK (version > 0),
    confirmed_at           INTEGER,
    settled_at             INTEGER,
    status                 INTEGER,
    resource_id            TEXT,
    owner                  TEXT,
    lease_until            INTEGER,
    fence                  INTEGER NOT NULL,
    has_payload            INTEGER NOT NULL,
    transaction_reference  TEXT,
    due_at                 INTEGER,
    request_digest         TEXT,
    indeterminate          INTEGER NOT NULL,
    row_version            INTEGER NOT NULL CHECK (row_version <= version),  -- of its ledger row; 0: it has none
    sync_timestamp         INTEGER,          -- when the central ledger had this version of the row
    last_line              INTEGER NOT NULL, -- the newest line about it; 0: what there is, is in the old journal
    client_hash            INTEGER NOT NULL, -- of the client's id. It only leads to rows: the ids themselves are compared.
    who                    INTEGER CHECK (who IS NULL OR forgotten = 0),  -- hash of the principal, or the next free number
    forgotten              INTEGER NOT NULL CHECK (forgotten = 0 OR forgotten = 1),
    payload                BLOB,             -- sealed; a large part is in `seal`, so that an update does not write it again
    response               BLOB
) STRICT;

-- What the loaders read: an intent that still holds its keys, in the order of the record's fields.
CREATE VIEW live_intent AS SELECT
    id, client_correlation_id, server_correlation_id, principal, replay_key, callback, client_id_is_proxy, mode,
    service_endpoint, path, method, received_at, ttl_ms, delta_ms, counted_bytes, phase, version, confirmed_at, settled_at,
    status, resource_id, owner, lease_until, fence, has_payload, transaction_reference, due_at, request_digest,
    indeterminate, last_line, who, client_hash
FROM intent WHERE forgotten = 0;

-- The rows that are carried by another record than an intent: the calls that a client made.
CREATE TABLE client_entry (
    id                     INTEGER PRIMARY KEY,
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
    outcome                TEXT    CHECK (
        outcome = 'COMMITTED' OR outcome = 'FAILED' OR outcome = 'TTL_EXPIRED' OR outcome = 'ABANDONED'),
    payload_ref            TEXT,
    sync_timestamp         INTEGER,
    transaction_reference  TEXT,
    version                INTEGER NOT NULL CHECK (version > 0),
    mode                   TEXT    NOT NULL,
    client_id_is_proxy     INTEGER NOT NULL,
    settled_at             INTEGER,
    request_digest         TEXT,
    indeterminate          INTEGER NOT NULL,
    last_line              INTEGER NOT NULL,  -- the newest line about a record that is gone
    UNIQUE (client_correlation_id, server_correlation_id, actor)
) STRICT;
CREATE INDEX client_entry_open ON client_entry (phase_1_timestamp) WHERE outcome IS NULL OR outcome = 'TTL_EXPIRED';
CREATE INDEX client_entry_children ON client_entry (parent_reference_id) WHERE actor = 'client';
CREATE INDEX client_entry_synced ON client_entry (sync_timestamp) WHERE sync_timestamp IS NOT NULL;
CREATE INDEX client_entry_unsynced ON client_entry (id) WHERE sync_timestamp IS NULL;

-- A server's ledger row is what its intent says. Who writes it is a setting, the same for every row.
CREATE VIEW server_entry AS SELECT
    id, client_correlation_id, server_correlation_id,
    (SELECT value FROM meta WHERE name = 'service_ledger_id') AS service_ledger_id,
    service_endpoint, 'server' AS actor, (SELECT value FROM meta WHERE name = 'service') AS source, NULL AS target,
    client_correlation_id AS parent_reference_id, phase, received_at AS phase_1_timestamp,
    confirmed_at AS phase_2_timestamp, ttl_ms,
    iif(phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING', NULL, phase) AS outcome,
    iif(has_payload, 'vault:' || server_correlation_id || '/payload', NULL) AS payload_ref,
    sync_timestamp, transaction_reference, row_version AS version, mode, client_id_is_proxy, settled_at, request_digest,
    indeterminate
FROM intent WHERE row_version > 0;
CREATE VIEW client_row AS SELECT
    id, client_correlation_id, server_correlation_id, service_ledger_id, service_endpoint, actor, source, target,
    parent_reference_id, phase, phase_1_timestamp, phase_2_timestamp, ttl_ms, outcome, payload_ref, sync_timestamp,
    transaction_reference, version, mode, client_id_is_proxy, settled_at, request_digest, indeterminate
FROM client_entry;
CREATE VIEW entry AS SELECT * FROM server_entry UNION ALL SELECT * FROM client_row;

-- Sealed parts of obligations, jobs and calls, and those of an intent that are too large for its row.
CREATE TABLE seal (
    record  INTEGER NOT NULL,
    part    TEXT    NOT NULL CHECK (part = 'payload' OR part = 'response'),
    sealed  BLOB    NOT NULL,
    PRIMARY KEY (record, part)
) STRICT, WITHOUT ROWID;
CREATE VIEW sealed_part AS
SELECT record, part, sealed FROM seal
UNION ALL SELECT id, 'payload', payload FROM intent WHERE payload IS NOT NULL
UNION ALL SELECT id, 'response', response FROM intent WHERE response IS NOT NULL;
-- The same with what each part is bound to, by where it lies.
CREATE VIEW seal_of_record AS
SELECT seal.record AS record, seal.part AS part, seal.sealed AS sealed,
    coalesce(obligation_id, job_id, call.client_correlation_id) AS subject, coalesce(principal, '') AS principal,
    coalesce(intent.client_correlation_id, '') AS client_correlation_id,
    coalesce(intent.server_correlation_id, '') AS server_correlation_id,
    coalesce(intent.method, '') AS method, coalesce(path, '') AS path
FROM seal LEFT JOIN intent ON intent.id = seal.record LEFT JOIN obligation ON obligation.id = seal.record
LEFT JOIN job ON job.id = seal.record LEFT JOIN call ON call.id = seal.record;
CREATE VIEW seal_of_row AS
SELECT id AS record, 'payload' AS part, payload AS sealed, NULL AS subject, principal, client_correlation_id,
    server_correlation_id, method, path FROM intent WHERE payload IS NOT NULL
UNION ALL
SELECT id, 'response', response, NULL, principal, client_correlation_id, server_correlation_id, method, path
FROM intent WHERE response IS NOT NULL;

-- A record points to its newest line, and each line to the one before it: a history is a walk and needs no index.
ALTER TABLE obligation ADD COLUMN last_line INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN last_line INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN last_line INTEGER NOT NULL DEFAULT 0;

-- The journal: the lines of one batch, and one hash over them and over the hash before. Lines are numbered on from the old
-- journal, which keeps its lines and its head; the first link is chained to that head.
CREATE TABLE link (
    id       INTEGER PRIMARY KEY,   -- the number of its first line
    writer   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,      -- the writer's own count of its links
    count    INTEGER NOT NULL CHECK (count > 0),
    at       INTEGER NOT NULL,      -- time never runs backwards, not even over a restart
    next_id  INTEGER NOT NULL,      -- nor is an id given twice
    hash     BLOB    NOT NULL,
    lines    TEXT    NOT NULL       -- JSON: an array for each line, see the view `journal`; its last value is its own CRC
) STRICT;
CREATE TRIGGER link_is_never_edited BEFORE UPDATE ON link
BEGIN
    SELECT raise(ABORT, 'the journal is append-only');
END;
CREATE TRIGGER link_is_never_cut BEFORE DELETE ON link
BEGIN
    SELECT raise(ABORT, 'the journal is append-only');
END;
CREATE TRIGGER old_journal_is_closed BEFORE INSERT ON old_journal
BEGIN
    SELECT raise(ABORT, 'the journal goes on in link');
END;
-- Where each writer has come to, written by that writer alone: links that were cut off at the end no longer fit it.
CREATE TABLE writer (
    id    INTEGER PRIMARY KEY,      -- its first link
    name  TEXT    NOT NULL,
    seq   INTEGER NOT NULL,         -- how many links it has written,
    link  INTEGER NOT NULL,         -- the last of them,
    hash  BLOB    NOT NULL          -- and its hash
) STRICT;
-- Every line, old and new, for whoever looks. A line of a link has its link's hash.
CREATE VIEW journal AS
SELECT seq, record, kind, subject, event, before, after, at, observed_at, fence, trace_id, detail, hash FROM old_journal
UNION ALL
SELECT line.value ->> 0, line.value ->> 2, line.value ->> 3, line.value ->> 4, line.value ->> 5, line.value ->> 6,
    line.value ->> 7, line.value ->> 8, line.value ->> 9, line.value ->> 10, line.value ->> 11, line.value ->> 12, link.hash
FROM link CROSS JOIN json_each(link.lines) AS line;

-- How far the rows have been taken over, by their ids.
CREATE TABLE widening (position INTEGER NOT NULL) STRICT;
INSERT INTO widening VALUES (0);
