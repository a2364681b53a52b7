"""The process side of the service: sockets, connections, signals and worker processes."""
