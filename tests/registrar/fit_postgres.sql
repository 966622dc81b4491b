-- A surface in PostgreSQL that is fit.
CREATE TABLE ledger (
    id                         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    logical_request_key        text NOT NULL UNIQUE,
    replay_key                 text NOT NULL UNIQUE,
    authorization_nonce        text NOT NULL UNIQUE,
    attempt_id                 text NOT NULL,
    canonical_operation        text NOT NULL,
    canonical_target           text NOT NULL,
    run_id                     text NOT NULL,
    deployed_artifact_hash     text NOT NULL,
    owner_or_approval_binding  text NOT NULL,
    domain                     text NOT NULL CHECK (domain = 'registration'),
    consumed_at                bigint NOT NULL
);
CREATE TABLE registrar_audit (
    failure_id  text PRIMARY KEY,
    code        text NOT NULL,
    at          bigint NOT NULL
);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$;
CREATE TRIGGER ledger_rows BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE TRIGGER ledger_all BEFORE TRUNCATE ON ledger EXECUTE FUNCTION refuse();
CREATE TRIGGER audit_rows BEFORE UPDATE OR DELETE ON registrar_audit FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE TRIGGER audit_all BEFORE TRUNCATE ON registrar_audit EXECUTE FUNCTION refuse();
