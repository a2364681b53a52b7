"""The kernel shared by the three programs: standard library and numpy, no I/O, no clock, no randomness."""
