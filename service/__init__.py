"""The online service: ranks the 15 candidate configurations before a vLLM server is started."""

__version__ = "0.1.0"
