"""What contributors run; nothing here ships."""
