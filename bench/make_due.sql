UPDATE intent SET phase = 'WAITING_CONFIRM', received_at = :now - 31000, due_at = :now - 1000
WHERE id >= :first AND id < :first + :due;
