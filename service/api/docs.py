"""Swagger UI at /docs with its assets from our own origin: the page works with the network closed."""

from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from swagger_ui_bundle import swagger_ui_path

from service.api.problem import RefusedError

_PAGE = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>MemoryPolicy</title>
    <link rel="stylesheet" href="docs/assets/swagger-ui.css">
    <link rel="icon" type="image/png" href="docs/assets/favicon-32x32.png">
  </head>
  <body>
    <div id="swagger-ui"></div>
    <script src="docs/assets/swagger-ui-bundle.js"></script>
    <script src="docs/assets/start.js"></script>
  </body>
</html>
"""
# validatorUrl null: by default Swagger UI sends the document's address to a public validator.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""
_ASSETS = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
_HEADERS = {
    # Swagger UI sets inline styles and draws its icons from data: addresses.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
}

docs = APIRouter(include_in_schema=False)


@docs.get("/docs")
async def page() -> Response:
    """The page; its addresses are relative, so it works behind a path prefix too."""
    return HTMLResponse(_PAGE, headers=_HEADERS)


@docs.get("/docs/assets/start.js")
async def start() -> Response:
    """What would be an inline script, were those allowed."""
    return Response(_START, media_type="text/javascript", headers=_HEADERS)


@docs.get("/docs/assets/{name}")
async def asset(name: str) -> Response:
    """A file of the package that the page needs; the package holds more, which is not served."""
    if name not in _ASSETS:
        raise RefusedError("not_found", "the documentation has no such file")
    return FileResponse(Path(swagger_ui_path) / name, media_type=_ASSETS[name], headers=_HEADERS)


# Not async: the first call makes the document, and others must not wait for it.
@docs.get("/openapi.json")
def openapi(request: Request) -> Response:
    """The committed document."""
    return Response(request.app.state.openapi(), media_type="application/json")
