"""What every part of a request has in common."""

from pydantic import BaseModel, ConfigDict


class RequestPart(BaseModel):
    """Exact types, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
