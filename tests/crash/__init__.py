"""What a service's clients find after its process was killed, whenever that was."""
