-- A stage of its own for a call that its client gave up before its deadline (A-49). A CHECK is changed by making its table
-- anew; the view that names the table is made anew with it. What an older twophp gave up is TTL_EXPIRED, and stays so.
DROP VIEW seal_of_record;
CREATE TABLE new_call (
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
        stage = 'SENT' OR stage = 'WAITING_CONFIRM' OR stage = 'GIVEN_UP' OR stage = 'PROCESSING' OR stage = 'COMMITTED'
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
    due_at                 INTEGER,
    indeterminate          INTEGER NOT NULL DEFAULT 0,
    last_line              INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO new_call SELECT * FROM call;
DROP TABLE call;
ALTER TABLE new_call RENAME TO call;
CREATE INDEX call_due ON call (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX call_owner ON call (owner) WHERE owner > '';
CREATE VIEW seal_of_record AS
SELECT seal.record AS record, seal.part AS part, seal.sealed AS sealed,
    coalesce(obligation_id, job_id, call.client_correlation_id) AS subject, coalesce(principal, '') AS principal,
    coalesce(intent.client_correlation_id, '') AS client_correlation_id,
    coalesce(intent.server_correlation_id, '') AS server_correlation_id,
    coalesce(intent.method, '') AS method, coalesce(path, '') AS path
FROM seal LEFT JOIN intent ON intent.id = seal.record LEFT JOIN obligation ON obligation.id = seal.record
LEFT JOIN job ON job.id = seal.record LEFT JOIN call ON call.id = seal.record;
