"""rollmill: train agents at the speed of the simulator, keep what they did, learn from it again."""

__version__ = "0.1.0"

__all__ = ["__version__"]
