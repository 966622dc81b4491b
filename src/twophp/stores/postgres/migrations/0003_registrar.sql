-- The registrar's tables, as a SQLite file has them. A row that says what was decided is written once: triggers refuse UPDATE,
-- DELETE and TRUNCATE, and with UPDATE also an insert that would replace. Only a transaction that calls itself the registrar's
-- can insert, which the setting `twophp_ledger.registrar` says; the grants say who may at all. Gate and fence have versions, which
-- rise by one. Ids have a default, so that a probe of the surface needs none.

CREATE TABLE twophp.registrar_nonce (
    id                         bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    authorization_nonce        text COLLATE "C" NOT NULL UNIQUE CHECK (authorization_nonce <> ''),
    owner_or_approval_binding  text   NOT NULL CHECK (owner_or_approval_binding <> ''),
    valid_from                 bigint NOT NULL,
    valid_until                bigint NOT NULL CHECK (valid_until > valid_from)
);

-- The replay surface: one row for each logical effect, and every axis of uniqueness by itself. No attempt is in a key.
CREATE TABLE twophp.registrar_consumed (
    id                         bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    protocol_version           text   NOT NULL CHECK (protocol_version <> ''),
    logical_request_key        text COLLATE "C" NOT NULL UNIQUE CHECK (logical_request_key <> ''),
    canonical_operation        text COLLATE "C" NOT NULL CHECK (canonical_operation <> ''),
    canonical_target           text COLLATE "C" NOT NULL CHECK (canonical_target <> ''),
    deployed_artifact_hash     text COLLATE "C" NOT NULL CHECK (deployed_artifact_hash <> ''),
    owner_or_approval_binding  text   NOT NULL CHECK (owner_or_approval_binding <> ''),
    run_id                     text   NOT NULL CHECK (run_id <> ''),
    authorization_nonce        text COLLATE "C" NOT NULL UNIQUE
        REFERENCES twophp.registrar_nonce (authorization_nonce) DEFERRABLE INITIALLY DEFERRED,
    attempt_id                 text   NOT NULL CHECK (attempt_id <> ''),
    replay_key                 text COLLATE "C" NOT NULL UNIQUE CHECK (replay_key <> ''),
    effect_run_id              text COLLATE "C" NOT NULL,  -- empty where the effect is the same in every run
    consumed_at                bigint NOT NULL,
    domain                     text   NOT NULL CHECK (domain = 'registration')
);
-- Four texts may be longer together than an entry of an index. Two that have one digest are refused, as the same would be.
CREATE UNIQUE INDEX registrar_consumed_effect ON twophp.registrar_consumed
    (md5(canonical_operation), md5(canonical_target), md5(deployed_artifact_hash), md5(effect_run_id));

CREATE TABLE twophp.registrar_registration (
    id                   bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    logical_request_key  text COLLATE "C" NOT NULL UNIQUE
        REFERENCES twophp.registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    replay_key           text COLLATE "C" NOT NULL UNIQUE
        REFERENCES twophp.registrar_consumed (replay_key) DEFERRABLE INITIALLY DEFERRED,
    registered_at        bigint NOT NULL,
    status               text   NOT NULL CHECK (status = 'draft')  -- nothing here is active
);

CREATE TABLE twophp.registrar_nonce_use (
    id                   bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    authorization_nonce  text COLLATE "C" NOT NULL UNIQUE
        REFERENCES twophp.registrar_nonce (authorization_nonce) DEFERRABLE INITIALLY DEFERRED,
    logical_request_key  text COLLATE "C" NOT NULL
        REFERENCES twophp.registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    used_for             text   NOT NULL CHECK (used_for IN ('registration', 'compensation')),
    used_at              bigint NOT NULL
);

CREATE TABLE twophp.registrar_verification (
    id                   bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    about                text COLLATE "C" NOT NULL CHECK (about IN ('registration', 'compensation')),
    subject              text COLLATE "C" NOT NULL,
    logical_request_key  text COLLATE "C" NOT NULL
        REFERENCES twophp.registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    verdict              text   NOT NULL CHECK (verdict IN ('PASS', 'FAIL')),
    verified_at          bigint NOT NULL,
    UNIQUE (about, subject)
);
CREATE UNIQUE INDEX registrar_compensated_once ON twophp.registrar_verification (logical_request_key)
WHERE about = 'compensation' AND verdict = 'PASS';

CREATE TABLE twophp.registrar_compensation (
    id                         bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    logical_request_key        text COLLATE "C" NOT NULL
        REFERENCES twophp.registrar_consumed (logical_request_key) DEFERRABLE INITIALLY DEFERRED,
    owner_or_approval_binding  text   NOT NULL,
    authorization_nonce        text COLLATE "C" NOT NULL UNIQUE
        REFERENCES twophp.registrar_nonce (authorization_nonce) DEFERRABLE INITIALLY DEFERRED,
    attempt_id                 text   NOT NULL,
    compensated_at             bigint NOT NULL
);
CREATE INDEX registrar_compensation_of ON twophp.registrar_compensation (logical_request_key);

-- What was refused, written on a connection of its own after the rollback: ids, codes and digests.
CREATE TABLE twophp.registrar_audit (
    id                   bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    failure_id           text COLLATE "C" NOT NULL UNIQUE,
    at                   bigint NOT NULL,
    code                 text   NOT NULL CHECK (code <> ''),
    cause                text   NOT NULL,
    row                  text   NOT NULL,
    logical_request_key  text COLLATE "C" NOT NULL,
    replay_key           text   NOT NULL,
    attempt_id           text   NOT NULL,
    nonce_digest         text   NOT NULL
);
CREATE INDEX registrar_audit_of ON twophp.registrar_audit (logical_request_key);

CREATE TABLE twophp.registrar_gate (
    id             bigint  PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    is_open        boolean NOT NULL,
    authority_ref  text    NOT NULL CHECK (NOT is_open OR authority_ref <> ''),
    reason         text    NOT NULL,
    changed_at     bigint  NOT NULL,
    version        bigint  NOT NULL CHECK (version > 0),
    name           text    NOT NULL UNIQUE CHECK (name = 'registrar')
);

CREATE TABLE twophp.registrar_fence (
    id                   bigint PRIMARY KEY DEFAULT nextval('twophp.record_id'),
    logical_request_key  text COLLATE "C" NOT NULL UNIQUE,
    fenced_at            bigint NOT NULL,
    version              bigint NOT NULL CHECK (version > 0)
);

-- Who may write, and that nothing written is changed. ----------------------------------------------------------------

CREATE FUNCTION twophp.refuse_strangers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('twophp_ledger.registrar', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'only the registrar writes here' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION twophp.refuse_leap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('twophp_ledger.registrar', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'only the registrar writes here' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF new.version <> old.version + 1 OR new.id <> old.id THEN
        RAISE EXCEPTION '%: a version rises by one', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER registrar_nonce_is_guarded BEFORE INSERT ON twophp.registrar_nonce
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_nonce_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_nonce
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_consumed_is_guarded BEFORE INSERT ON twophp.registrar_consumed
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_consumed_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_consumed
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_registration_is_guarded BEFORE INSERT ON twophp.registrar_registration
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_registration_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_registration
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_nonce_use_is_guarded BEFORE INSERT ON twophp.registrar_nonce_use
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_nonce_use_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_nonce_use
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_verification_is_guarded BEFORE INSERT ON twophp.registrar_verification
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_verification_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_verification
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_compensation_is_guarded BEFORE INSERT ON twophp.registrar_compensation
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_compensation_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_compensation
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_audit_is_guarded BEFORE INSERT ON twophp.registrar_audit
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_audit_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.registrar_audit
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_gate_is_guarded BEFORE INSERT ON twophp.registrar_gate
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_gate_only_rises BEFORE UPDATE ON twophp.registrar_gate
FOR EACH ROW EXECUTE FUNCTION twophp.refuse_leap();
CREATE TRIGGER registrar_gate_is_never_cut BEFORE DELETE OR TRUNCATE ON twophp.registrar_gate
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER registrar_fence_is_guarded BEFORE INSERT ON twophp.registrar_fence
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_strangers();
CREATE TRIGGER registrar_fence_only_rises BEFORE UPDATE ON twophp.registrar_fence
FOR EACH ROW EXECUTE FUNCTION twophp.refuse_leap();
CREATE TRIGGER registrar_fence_is_never_cut BEFORE DELETE OR TRUNCATE ON twophp.registrar_fence
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
