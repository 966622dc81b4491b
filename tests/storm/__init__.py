"""Both sides of a call die, at any moment, again and again."""
