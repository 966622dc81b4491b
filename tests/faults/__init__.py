"""What is left after the N-th write or sync has failed, or was the last thing a process did."""
