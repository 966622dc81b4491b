-- The kernel's tables. Ids are integers from one counter in `head`, so they rise with time: rows land at the end of
-- their tables, and what belongs to a record (its ledger row, its sealed parts, its history) is found by that id.
-- Random ids cost a page of the log each, so there are two indexes on them and no third.
-- Checks are spelled as comparisons: for IN, SQLite builds a small table anew for every row it checks.

CREATE TABLE head (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    seq      INTEGER NOT NULL,          -- the journal's last line ...
    hash     BLOB    NOT NULL,          -- ... and its hash: a truncated journal no longer fits its head
    at       INTEGER NOT NULL,          -- time never runs backwards, not even over a restart
    next_id  INTEGER NOT NULL,
    synced   INTEGER NOT NULL,          -- the central ledger has acknowledged every change up to this line
    opened   INTEGER NOT NULL           -- how often the file was opened; each opening proves that a write is durable
) STRICT;
INSERT INTO head VALUES (1, 0, x'', 0, 1, 0, 0);

CREATE TABLE meta (
    name   TEXT PRIMARY KEY,
    value  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

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
    -- The logical key, used up once (REG-1-05). Led by the client's id, it also finds the pair.
    UNIQUE (client_correlation_id, principal)
) STRICT;
CREATE INDEX intent_due ON intent (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE obligation (
    id             INTEGER PRIMARY KEY,
    obligation_id  TEXT    NOT NULL UNIQUE,
    flow           TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    trace_id       TEXT    NOT NULL,
    intent         TEXT    NOT NULL,
    reserved_at    INTEGER NOT NULL,
    timeout_ms     INTEGER NOT NULL CHECK (timeout_ms > 0),
    state          TEXT    NOT NULL CHECK (
        state = 'Reserved' OR state = 'Committed' OR state = 'RolledBack'),
    version        INTEGER NOT NULL CHECK (version > 0),
    settled_at     INTEGER,
    resolution     TEXT    NOT NULL,
    due_at         INTEGER
) STRICT;
-- Enforced only while reserved (A-75): commit or rollback frees the key.
CREATE UNIQUE INDEX obligation_held ON obligation (flow, key) WHERE state = 'Reserved' AND key <> '';
CREATE INDEX obligation_due ON obligation (due_at) WHERE due_at IS NOT NULL;

-- The outbox: what a transition owes to others, written in the same change as the transition (A-38).
CREATE TABLE job (
    id          INTEGER PRIMARY KEY,
    job_id      TEXT    NOT NULL UNIQUE,
    work        TEXT    NOT NULL CHECK (work = 'callback' OR work = 'hook'),
    subject     TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    state       TEXT    NOT NULL CHECK (
        state = 'PENDING' OR state = 'RUNNING' OR state = 'DELIVERED' OR state = 'DEAD'),
    version     INTEGER NOT NULL CHECK (version > 0),
    attempts    INTEGER NOT NULL CHECK (attempts >= 0),
    due_at      INTEGER,
    last_error  TEXT    NOT NULL
) STRICT;
CREATE INDEX job_due ON job (due_at) WHERE due_at IS NOT NULL;

-- What each principal has open, kept in the same changes as the intents that count; no row where nothing is.
CREATE TABLE quota (
    id            INTEGER PRIMARY KEY,
    principal     TEXT    NOT NULL UNIQUE,
    open_intents  INTEGER NOT NULL CHECK (open_intents > 0),
    open_bytes    INTEGER NOT NULL CHECK (open_bytes >= 0),
    version       INTEGER NOT NULL CHECK (version > 0)
) STRICT;

-- The ledger (draft §9.8): one row per pair and actor, under the id of the record it mirrors.
CREATE TABLE entry (
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
    UNIQUE (client_correlation_id, server_correlation_id, actor)
) STRICT;
CREATE INDEX entry_open ON entry (phase_1_timestamp) WHERE outcome IS NULL OR outcome = 'TTL_EXPIRED';
-- A server row's parent is its own client id, which the pair's index finds; only client rows need one of their own.
CREATE INDEX entry_children ON entry (parent_reference_id) WHERE actor = 'client';

CREATE TABLE seal (
    record  INTEGER NOT NULL,
    part    TEXT    NOT NULL CHECK (part = 'payload' OR part = 'response'),
    sealed  BLOB    NOT NULL,
    PRIMARY KEY (record, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE journal (
    seq          INTEGER PRIMARY KEY,
    record       INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    subject      TEXT    NOT NULL,
    event        TEXT    NOT NULL,
    before       TEXT    NOT NULL,
    after        TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    observed_at  INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    trace_id     TEXT    NOT NULL,
    detail       TEXT    NOT NULL,
    hash         BLOB    NOT NULL
) STRICT;
CREATE INDEX journal_by_record ON journal (record);
CREATE TRIGGER journal_is_never_edited BEFORE UPDATE ON journal
BEGIN
    SELECT raise(ABORT, 'the journal is append-only');
END;
CREATE TRIGGER journal_is_never_cut BEFORE DELETE ON journal
BEGIN
    SELECT raise(ABORT, 'the journal is append-only');
END;
