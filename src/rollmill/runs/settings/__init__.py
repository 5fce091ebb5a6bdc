"""The whole configuration of each kind of run, and the checks that need more than one room's settings."""
