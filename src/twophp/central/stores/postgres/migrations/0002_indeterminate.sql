-- FAILED, and nobody knows whether the effects happened. There are few such rows, and somebody has to look at each.
ALTER TABLE entry ADD COLUMN indeterminate boolean NOT NULL DEFAULT false;
CREATE INDEX entry_indeterminate ON entry (sequence) WHERE indeterminate;
