-- What arrived, digested as the client digests what it sends. Who registered before this cannot say.
ALTER TABLE intent ADD COLUMN request_digest TEXT;
