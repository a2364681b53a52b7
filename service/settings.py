"""What an operator may set: environment variables with the prefix MEMORYPOLICY_, overridden by command-line flags."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_BUNDLE_DIR = Path(__file__).resolve().parent / "bundles" / "dense-b200-robust"


class Settings(BaseSettings):
    """Every setting of the service. A relative path is relative to the working directory."""

    # An empty variable is what a template leaves behind for "not set", never a value of ours.
    model_config = SettingsConfigDict(env_prefix="MEMORYPOLICY_", env_ignore_empty=True, frozen=True, extra="forbid")

    bundle_dir: Path = Field(default=DEFAULT_BUNDLE_DIR, description="Folder with manifest.json and model.onnx.")
    default_gpu: str | None = Field(
        default=None, description="GPU of requests that name none; unset: the GPU that the bundle was trained for."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        default="info", description="Least severe log line that is written to stderr."
    )
    shutdown_grace_s: int = Field(
        default=10, ge=0, le=3600, description="Seconds that requests in flight get to finish after SIGTERM."
    )
