"""The service's memory: what was answered, what came of it, and which policy answers."""
