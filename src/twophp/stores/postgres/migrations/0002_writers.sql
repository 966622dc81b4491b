-- The beginning of a writer is chained: it names the writer before it and what was joined by then, and the hash that its first
-- link goes on from is over both. So a writer that is deleted with all that it has written leaves a gap. Older writers name none.
-- There is no default: a handle of the version before this one cannot begin a writer any more.
ALTER TABLE twophp.writer ADD COLUMN previous bigint NOT NULL DEFAULT -1, ADD COLUMN joined bigint NOT NULL DEFAULT 0;
ALTER TABLE twophp.writer ALTER COLUMN previous DROP DEFAULT, ALTER COLUMN joined DROP DEFAULT;

CREATE TRIGGER writer_is_never_deleted BEFORE DELETE OR TRUNCATE ON twophp.writer
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
