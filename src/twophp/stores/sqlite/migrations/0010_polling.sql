-- Whoever polls an asynchronous intent at its Location knows the server's id alone (draft §5.3.3).
CREATE INDEX intent_polled ON intent (server_correlation_id) WHERE mode = 'async';
