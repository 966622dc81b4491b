-- FAILED, and nobody knows whether the effects happened. What was settled before this does not say it.
ALTER TABLE intent ADD COLUMN indeterminate INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN indeterminate INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entry ADD COLUMN indeterminate INTEGER NOT NULL DEFAULT 0;
