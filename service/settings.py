"""What an operator may set: environment variables with the prefix MEMORYPOLICY_, overridden by command-line flags."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_BUNDLES = Path(__file__).resolve().parent / "bundles"
DEFAULT_BUNDLE_DIR = _BUNDLES / "dense-b200-robust"
# The further ones that come with the service: other GPUs, and other confidence in the workload.
_FURTHER = ("dense-b200-exact", "dense-b200-rough", "dense-h200-robust", "dense-h100-robust")


class Settings(BaseSettings):
    """Every setting of the service. A relative path is relative to the working directory."""

    # An empty variable is what a template leaves behind for "not set", never a value of ours.
    model_config = SettingsConfigDict(env_prefix="MEMORYPOLICY_", env_ignore_empty=True, frozen=True, extra="forbid")

    bundle_dir: Path = Field(default=DEFAULT_BUNDLE_DIR, description="Folder with manifest.json and model.onnx.")
    more_bundle_dirs: str | None = Field(
        default=None,
        description="Folders of further bundles, with commas, or none: each answers for the GPU and the confidence it "
        "was trained for. Unset: those that come with the service beside its own bundle, none beside another.",
    )
    models_dir: Path | None = Field(
        default=None,
        description="Folder of the operator's models, ORG--NAME.json or NAME/config.json each; read at the start.",
    )
    default_gpu: str | None = Field(
        default=None, description="GPU of requests that name none; unset: the GPU that the bundle was trained for."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")
    tls_cert_file: Path | None = Field(default=None, description="PEM certificate; with the key: serve TLS itself.")
    tls_key_file: Path | None = Field(default=None, description="PEM private key of the certificate.")
    workers: int = Field(default=1, ge=1, le=64, description="Processes that serve the same address.")
    tokens_file: Path | None = Field(
        default=None, description="TOML file of the bearer tokens that are accepted; read again when it changes."
    )
    auth: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: tokens are asked for where there is a file of them, and any address but a loopback needs "
        "one; off: whoever reaches the address may ask.",
    )
    open_routes: str = Field(
        default="docs,page",
        pattern=r"^(none|(docs|page|metrics|webhook)(,(docs|page|metrics|webhook))*)$",
        description="Of docs, page, metrics and webhook, with commas, or none: what is answered without a token; "
        "probes are.",
    )
    rate_limit_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Requests per second of one token (where none are asked for: of one address) in each process, and "
        "twice that at once; unset: 500 for a token, no limit where none are asked for.",
    )
    body_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds that a client may take to send a request's head, and its body.",
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="json: one object a line; text: for a person at a terminal."
    )
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        default="info", description="Least severe log line that is written to stderr."
    )
    data_dir: Path = Field(
        default=Path("var"), description="Folder of the embedded database and, unless set apart, of the spool."
    )
    database_url: str | None = Field(
        default=None,
        description="postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE; unset: the embedded SQLite database.",
    )
    sqlite_synchronous: Literal["normal", "full"] = Field(
        default="normal",
        description="normal: an acknowledged record survives a kill of the process; full: a power loss too.",
    )
    audit: bool = Field(default=True, description="false: answers leave without a record of them.")
    audit_group_size: int = Field(
        default=256, ge=1, le=10_000, description="Records that share a transaction at most; 1 commits each alone."
    )
    audit_deadline_ms: int = Field(
        default=1000, ge=10, le=60_000, description="How long a commit may take before its records are spooled."
    )
    spool_dir: Path | None = Field(
        default=None, description="Folder of what cannot reach the database yet; unset: spool in the data folder."
    )
    spool_max_mib: float = Field(
        default=64.0,
        gt=0,
        le=1_000_000,
        description="Size in MiB of each process's spool at which it refuses requests.",
    )
    hook_mapping_file: Path | None = Field(
        default=None, description="TOML file that maps clusters to GPUs and projects to loads; unset: nothing is."
    )
    hook_deadline_ms: int = Field(
        default=300, ge=10, le=60_000, description="After so long the hook answers skip, whatever it waits for."
    )
    hook_precedence: Literal["user", "catalog"] = Field(
        default="user", description="Whose value counts where user and operator's catalogue set the same argument."
    )
    annotation_prefix: str = Field(
        default="memorypolicy.io",
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,240}[a-z0-9])?$",
        description="Prefix of the annotations that the admission webhook reads and writes.",
    )
    policy_poll_s: float = Field(
        default=1.0, ge=0.05, le=3600, description="Seconds between two looks at which bundle is the active one."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="OTLP/HTTP address that traces are sent to, such as http://HOST:4318; unset: none are.",
    )
    trace_sample_ratio: float = Field(
        default=0.01, ge=0, le=1, description="Share of requests traced where the caller's traceparent does not decide."
    )
    drain_s: float = Field(
        default=1.0, ge=0, le=3600, description="Seconds after SIGTERM in which requests are taken and /readyz says no."
    )
    shutdown_grace_s: int = Field(
        default=10, ge=0, le=3600, description="Seconds that requests in flight get to finish after SIGTERM."
    )

    def further_bundles(self) -> list[Path]:
        """The folders of the bundles beside bundle_dir. A bundle of one's own is not silently joined by ours."""
        if self.more_bundle_dirs is None:
            shipped = [_BUNDLES / name for name in _FURTHER]
            return (
                [folder for folder in shipped if folder.is_dir()]
                if self.bundle_dir.resolve() == DEFAULT_BUNDLE_DIR
                else []
            )
        if self.more_bundle_dirs.strip() == "none":
            return []
        return [Path(folder.strip()) for folder in self.more_bundle_dirs.split(",") if folder.strip()]
