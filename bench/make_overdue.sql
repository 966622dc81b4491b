UPDATE obligation SET state = :state, reserved_at = :now - 31000, settled_at = NULL, resolution = '', due_at = :now - 1000
WHERE id >= :first AND id < :first + :overdue;
