-- What a client knows of the calls it made: one record for each id it minted. Its ledger row is in `entry`, under the
-- same id, from the moment both correlation ids are known.

CREATE TABLE call (
    id                     INTEGER PRIMARY KEY,
    client_correlation_id  TEXT    NOT NULL UNIQUE,
    parent_reference_id    TEXT    NOT NULL,
    method                 TEXT    NOT NULL,
    url                    TEXT    NOT NULL,
    meant                  TEXT    NOT NULL,
    target                 TEXT    NOT NULL,
    service_endpoint       TEXT    NOT NULL,
    mode                   TEXT    NOT NULL,
    sent_at                INTEGER NOT NULL,
    stage                  TEXT    NOT NULL CHECK (
        stage = 'SENT' OR stage = 'WAITING_CONFIRM' OR stage = 'PROCESSING' OR stage = 'COMMITTED'
        OR stage = 'FAILED' OR stage = 'TTL_EXPIRED'),
    version                INTEGER NOT NULL CHECK (version > 0),
    row_version            INTEGER NOT NULL CHECK (row_version <= version),
    server_correlation_id  TEXT    NOT NULL CHECK ((server_correlation_id = '') = (stage = 'SENT')),
    ttl_ms                 INTEGER NOT NULL,
    registered_at          INTEGER,
    confirm_by             INTEGER,
    confirmed_at           INTEGER,
    settled_at             INTEGER,
    status                 INTEGER,
    resource_id            TEXT,
    status_url             TEXT    NOT NULL,
    acknowledged_at        INTEGER,
    answered_at            INTEGER,
    owner                  TEXT    NOT NULL,
    fence                  INTEGER NOT NULL,
    attempts               INTEGER NOT NULL,
    last_error             TEXT    NOT NULL,
    due_at                 INTEGER
) STRICT;
CREATE INDEX call_due ON call (due_at) WHERE due_at IS NOT NULL;
