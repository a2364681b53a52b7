"""The ranker that is trained for what may really come when a workload was announced."""
