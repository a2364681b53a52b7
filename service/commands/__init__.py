"""Commands of `python -m service` that act on the service's memory. Each module adds its parser and runs."""
