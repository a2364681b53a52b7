"""The HTTP interface: JSON in and out, problems, documentation. The command line reuses its readers and writers."""
