-- What intents have ceased to count for that were settled in a transaction of the application's own (ADR 44). Each adds a row,
-- since its principal's count is a row that all of its intents change: a settlement would hold that until its COMMIT, and all
-- others of the principal would wait. Whoever locks the count next subtracts what is here, and deletes it.
CREATE TABLE twophp.released (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    principal  text COLLATE "C" NOT NULL,
    bytes      bigint NOT NULL
);
CREATE INDEX released_of ON twophp.released (principal);
