"""Benchmarks and fault experiments of the service's memory, on real processes; `make bench` and `make operations`."""
