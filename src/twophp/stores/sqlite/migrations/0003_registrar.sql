-- The registrar's tables. A row that says what was decided is written once: triggers refuse UPDATE and DELETE, and also
-- REPLACE, which would delete without asking them. Only a connection that calls itself the registrar can insert: the function
-- `twophp_registrar` exists nowhere else, so elsewhere the guard cannot even be prepared, and the insert fails with it.
-- Gate and fence have versions; a trigger lets them rise by one and never fall, and the journal holds what they were.

CREATE TABLE registrar_nonce (
    id                         INTEGER PRIMARY KEY,
    authorization_nonce        TEXT    NOT NULL UNIQUE CHECK (authorization_nonce <> ''),
    owner_or_approval_binding  TEXT    NOT NULL CHECK (owner_or_approval_binding <> ''),
    valid_from                 INTEGER NOT NULL,
    valid_until                INTEGER NOT NULL CHECK (valid_until > valid_from)
) STRICT;

-- The replay surface: one row for each logical effect, and every axis of uniqueness by itself. No attempt is in a key.
CREATE TABLE registrar_consumed (
    id                         INTEGER PRIMARY KEY,
    protocol_version           TEXT    NOT NULL CHECK (protocol_version <> ''),
    logical_request_key        TEXT    NOT NULL UNIQUE CHECK (logical_request_key <> ''),
    canonical_operation        TEXT    NOT NULL CHECK (canonical_operation <> ''),
    canonical_target           TEXT    NOT NULL CHECK (canonical_target <> ''),
    deployed_artifact_hash     TEXT    NOT NULL CHECK (deployed_artifact_hash <> ''),
    owner_or_approval_binding  TEXT    NOT NULL CHECK (owner_or_approval_binding <> ''),
    run_id                     TEXT    NOT NULL CHECK (run_id <> ''),
    authorization_nonce        TEXT    NOT NULL UNIQUE
        REFERENCES registrar_nonce (authorization_nonce) DEFERRABLE INITIALLY DEFERRED,
    attempt_id                 TEXT    NOT NULL CHECK (attempt_id <> ''),
    replay_key                 TEXT    NOT NULL UNIQUE CHECK (replay_key <> ''),
    effect_run_id              TEXT    NOT NULL,          -- empty where the effect is the same in every run
    consumed_at                INTEGER NOT NULL,
    domain                     TEXT    NOT NULL CHECK (domain = 'registration'),
    UNIQUE (canonical_operation, canonical_target, deployed_artifact_hash, effect_run_id)
) STRICT;

CREATE TABLE registrar_registration (
    id                   INTEGER PRIMARY KEY,
    logical_request_key  TEXT    NOT NULL UNIQUE
        REFERENCES registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    replay_key           TEXT    NOT NULL UNIQUE
        REFERENCES registrar_consumed (replay_key) DEFERRABLE INITIALLY DEFERRED,
    registered_at        INTEGER NOT NULL,
    status               TEXT    NOT NULL
) STRICT;
CREATE TRIGGER registrar_registration_is_inert BEFORE INSERT ON registrar_registration WHEN new.status <> 'draft'
BEGIN
    SELECT raise(ABORT, 'a registration is a draft: nothing here is active');
END;

CREATE TABLE registrar_nonce_use (
    id                   INTEGER PRIMARY KEY,
    authorization_nonce  TEXT    NOT NULL UNIQUE
        REFERENCES registrar_nonce (authorization_nonce) DEFERRABLE INITIALLY DEFERRED,
    logical_request_key  TEXT    NOT NULL
        REFERENCES registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    used_for             TEXT    NOT NULL CHECK (used_for = 'registration' OR used_for = 'compensation'),
    used_at              INTEGER NOT NULL
) STRICT;

CREATE TABLE registrar_verification (
    id                   INTEGER PRIMARY KEY,
    about                TEXT    NOT NULL CHECK (about = 'registration' OR about = 'compensation'),
    subject              TEXT    NOT NULL,
    logical_request_key  TEXT    NOT NULL
        REFERENCES registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    verdict              TEXT    NOT NULL CHECK (verdict = 'PASS' OR verdict = 'FAIL'),
    verified_at          INTEGER NOT NULL,
    UNIQUE (about, subject)
) STRICT;
CREATE UNIQUE INDEX registrar_compensated_once ON registrar_verification (logical_request_key)
WHERE about = 'compensation' AND verdict = 'PASS';

CREATE TABLE registrar_compensation (
    id                         INTEGER PRIMARY KEY,
    logical_request_key        TEXT    NOT NULL
        REFERENCES registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    owner_or_approval_binding  TEXT    NOT NULL,
    authorization_nonce        TEXT    NOT NULL UNIQUE
        REFERENCES registrar_nonce (authorization_nonce) DEFERRABLE INITIALLY DEFERRED,
    attempt_id                 TEXT    NOT NULL,
    compensated_at             INTEGER NOT NULL
) STRICT;
CREATE INDEX registrar_compensation_of ON registrar_compensation (logical_request_key);

-- What was refused, written on a connection of its own after the rollback: ids, codes and digests.
CREATE TABLE registrar_audit (
    id                   INTEGER PRIMARY KEY,
    failure_id           TEXT    NOT NULL UNIQUE,
    at                   INTEGER NOT NULL,
    code                 TEXT    NOT NULL CHECK (code <> ''),
    cause                TEXT    NOT NULL,
    row                  TEXT    NOT NULL,
    logical_request_key  TEXT    NOT NULL,
    replay_key           TEXT    NOT NULL,
    attempt_id           TEXT    NOT NULL,
    nonce_digest         TEXT    NOT NULL
) STRICT;
CREATE INDEX registrar_audit_of ON registrar_audit (logical_request_key);

CREATE TABLE registrar_gate (
    id             INTEGER PRIMARY KEY,
    is_open        INTEGER NOT NULL CHECK (is_open = 0 OR is_open = 1),
    authority_ref  TEXT    NOT NULL CHECK (is_open = 0 OR authority_ref <> ''),
    reason         TEXT    NOT NULL,
    changed_at     INTEGER NOT NULL,
    version        INTEGER NOT NULL CHECK (version > 0),
    name           TEXT    NOT NULL UNIQUE CHECK (name = 'registrar')
) STRICT;

CREATE TABLE registrar_fence (
    id                   INTEGER PRIMARY KEY,
    logical_request_key  TEXT    NOT NULL UNIQUE,
    fenced_at            INTEGER NOT NULL,
    version              INTEGER NOT NULL CHECK (version > 0)
) STRICT;

-- Who may write, and that nothing written is changed. ----------------------------------------------------------------

CREATE TRIGGER registrar_nonce_is_guarded BEFORE INSERT ON registrar_nonce
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_nonce has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_nonce WHERE id = new.id OR authorization_nonce = new.authorization_nonce);
END;
CREATE TRIGGER registrar_nonce_is_never_edited BEFORE UPDATE ON registrar_nonce
BEGIN
    SELECT raise(ABORT, 'registrar_nonce is append-only');
END;
CREATE TRIGGER registrar_nonce_is_never_cut BEFORE DELETE ON registrar_nonce
BEGIN
    SELECT raise(ABORT, 'registrar_nonce is append-only');
END;

CREATE TRIGGER registrar_consumed_is_guarded BEFORE INSERT ON registrar_consumed
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_consumed has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_consumed WHERE id = new.id OR logical_request_key = new.logical_request_key
        OR replay_key = new.replay_key OR authorization_nonce = new.authorization_nonce
        OR (canonical_operation = new.canonical_operation AND canonical_target = new.canonical_target
            AND deployed_artifact_hash = new.deployed_artifact_hash AND effect_run_id = new.effect_run_id));
END;
CREATE TRIGGER registrar_consumed_is_never_edited BEFORE UPDATE ON registrar_consumed
BEGIN
    SELECT raise(ABORT, 'registrar_consumed is append-only');
END;
CREATE TRIGGER registrar_consumed_is_never_cut BEFORE DELETE ON registrar_consumed
BEGIN
    SELECT raise(ABORT, 'registrar_consumed is append-only');
END;

CREATE TRIGGER registrar_registration_is_guarded BEFORE INSERT ON registrar_registration
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_registration has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_registration WHERE
        id = new.id OR logical_request_key = new.logical_request_key OR replay_key = new.replay_key);
END;
CREATE TRIGGER registrar_registration_is_never_edited BEFORE UPDATE ON registrar_registration
BEGIN
    SELECT raise(ABORT, 'registrar_registration is append-only');
END;
CREATE TRIGGER registrar_registration_is_never_cut BEFORE DELETE ON registrar_registration
BEGIN
    SELECT raise(ABORT, 'registrar_registration is append-only');
END;

CREATE TRIGGER registrar_nonce_use_is_guarded BEFORE INSERT ON registrar_nonce_use
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_nonce_use has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_nonce_use WHERE id = new.id OR authorization_nonce = new.authorization_nonce);
END;
CREATE TRIGGER registrar_nonce_use_is_never_edited BEFORE UPDATE ON registrar_nonce_use
BEGIN
    SELECT raise(ABORT, 'registrar_nonce_use is append-only');
END;
CREATE TRIGGER registrar_nonce_use_is_never_cut BEFORE DELETE ON registrar_nonce_use
BEGIN
    SELECT raise(ABORT, 'registrar_nonce_use is append-only');
END;

CREATE TRIGGER registrar_verification_is_guarded BEFORE INSERT ON registrar_verification
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_verification has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_verification WHERE id = new.id OR (about = new.about AND subject = new.subject));
END;
CREATE TRIGGER registrar_verification_is_never_edited BEFORE UPDATE ON registrar_verification
BEGIN
    SELECT raise(ABORT, 'registrar_verification is append-only');
END;
CREATE TRIGGER registrar_verification_is_never_cut BEFORE DELETE ON registrar_verification
BEGIN
    SELECT raise(ABORT, 'registrar_verification is append-only');
END;

CREATE TRIGGER registrar_compensation_is_guarded BEFORE INSERT ON registrar_compensation
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_compensation has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_compensation WHERE id = new.id OR authorization_nonce = new.authorization_nonce);
END;
CREATE TRIGGER registrar_compensation_is_never_edited BEFORE UPDATE ON registrar_compensation
BEGIN
    SELECT raise(ABORT, 'registrar_compensation is append-only');
END;
CREATE TRIGGER registrar_compensation_is_never_cut BEFORE DELETE ON registrar_compensation
BEGIN
    SELECT raise(ABORT, 'registrar_compensation is append-only');
END;

CREATE TRIGGER registrar_audit_is_guarded BEFORE INSERT ON registrar_audit
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_audit has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_audit WHERE id = new.id OR failure_id = new.failure_id);
END;
CREATE TRIGGER registrar_audit_is_never_edited BEFORE UPDATE ON registrar_audit
BEGIN
    SELECT raise(ABORT, 'registrar_audit is append-only');
END;
CREATE TRIGGER registrar_audit_is_never_cut BEFORE DELETE ON registrar_audit
BEGIN
    SELECT raise(ABORT, 'registrar_audit is append-only');
END;

CREATE TRIGGER registrar_gate_is_guarded BEFORE INSERT ON registrar_gate
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_gate has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_gate WHERE id = new.id OR name = new.name);
END;
CREATE TRIGGER registrar_gate_only_rises BEFORE UPDATE ON registrar_gate
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'registrar_gate: a version rises by one')
    WHERE new.version <> old.version + 1 OR new.name <> old.name OR new.id <> old.id;
END;
CREATE TRIGGER registrar_gate_is_never_cut BEFORE DELETE ON registrar_gate
BEGIN
    SELECT raise(ABORT, 'registrar_gate is never deleted');
END;

CREATE TRIGGER registrar_fence_is_guarded BEFORE INSERT ON registrar_fence
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'UNIQUE: registrar_fence has such a row') WHERE EXISTS (
        SELECT 1 FROM registrar_fence WHERE id = new.id OR logical_request_key = new.logical_request_key);
END;
CREATE TRIGGER registrar_fence_only_rises BEFORE UPDATE ON registrar_fence
BEGIN
    SELECT raise(ABORT, 'only the registrar writes here') WHERE twophp_registrar() IS NOT 1;
    SELECT raise(ABORT, 'registrar_fence: a version rises by one')
    WHERE new.version <> old.version + 1 OR new.logical_request_key <> old.logical_request_key OR new.id <> old.id;
END;
CREATE TRIGGER registrar_fence_is_never_cut BEFORE DELETE ON registrar_fence
BEGIN
    SELECT raise(ABORT, 'registrar_fence is never deleted');
END;
