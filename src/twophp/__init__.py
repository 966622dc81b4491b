"""Two-Phase HTTP: a mutation is registered by both sides before it runs, and runs once."""

__version__ = "0.1.0"

__all__ = ["__version__"]
