-- An operator's own table that is fit, by means of its own.
CREATE TABLE ledger (
    id                         INTEGER PRIMARY KEY,
    logical_request_key        TEXT NOT NULL UNIQUE,
    replay_key                 TEXT NOT NULL UNIQUE,
    authorization_nonce        TEXT NOT NULL UNIQUE,
    attempt_id                 TEXT NOT NULL,
    operation                  TEXT NOT NULL,
    canonical_target           TEXT NOT NULL,
    run_id                     TEXT NOT NULL,
    deployed_artifact_hash     TEXT NOT NULL,
    owner_or_approval_binding  TEXT NOT NULL,
    domain                     TEXT NOT NULL CHECK (domain = 'registration'),
    consumed_at                INTEGER NOT NULL
);
CREATE TRIGGER ledger_guard BEFORE INSERT ON ledger
BEGIN
    SELECT raise(ABORT, 'not the registrar') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'taken') WHERE EXISTS (SELECT 1 FROM ledger WHERE id = new.id
        OR logical_request_key = new.logical_request_key OR replay_key = new.replay_key
        OR authorization_nonce = new.authorization_nonce);
END;
CREATE TRIGGER ledger_update BEFORE UPDATE ON ledger BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TABLE registrar_audit (id INTEGER PRIMARY KEY, code TEXT NOT NULL, at INTEGER NOT NULL);
CREATE TRIGGER audit_insert BEFORE INSERT ON registrar_audit WHEN new.id IS NOT NULL
BEGIN
    SELECT raise(ABORT, 'taken') WHERE EXISTS (SELECT 1 FROM registrar_audit WHERE id = new.id);
END;
CREATE TRIGGER audit_update BEFORE UPDATE ON registrar_audit BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER audit_delete BEFORE DELETE ON registrar_audit BEGIN SELECT raise(ABORT, 'append-only'); END;
