-- FAILED, and nobody knows whether the effects happened. There are few such rows, and somebody has to look at each.
ALTER TABLE entry ADD COLUMN indeterminate INTEGER NOT NULL DEFAULT 0;
CREATE INDEX entry_indeterminate ON entry (sequence) WHERE indeterminate = 1;
