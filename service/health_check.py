"""`python -m service.health_check`: exit status 0 if the process of this container answers /healthz, else 1.

The image's HEALTHCHECK. It reads the same environment as the service and imports none of it, so that it costs little.
"""

import http.client
import os
import ssl
import sys
import urllib.request
from collections.abc import Mapping

PATIENCE_S = 2.0


def address(environment: Mapping[str, str]) -> str:
    """Where the service of these settings answers: by loopback, unless it listens on one address only."""
    host = environment.get("MEMORYPOLICY_HOST") or "127.0.0.1"
    # Every interface is asked on the loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if environment.get("MEMORYPOLICY_TLS_CERT_FILE") else "http"
    return f"{scheme}://{shown}:{environment.get('MEMORYPOLICY_PORT') or '8000'}/healthz"


def main() -> int:
    """Says on stderr what is wrong."""
    # The certificate names the service, not this loopback; who answers here is known.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # No proxy stands between a process and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    url = address(os.environ)
    try:
        with opener.open(url, timeout=PATIENCE_S) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, http.client.HTTPException) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
