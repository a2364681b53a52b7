"""Fills cells: plans them, simulates them on a virtual clock, and merges the results."""
