-- Tokens of callbacks are made from the key ring. A secret in the clear has no place in the database any more.
DELETE FROM meta WHERE name = 'callback_secret';
