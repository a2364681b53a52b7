"""Follows which bundle the database names as active, and swaps it in once it is verified and ready."""

import logging
import threading
from collections.abc import Callable

from service.db.database import Database, DatabaseAwayError
from service.db.policies import active_digest, read_bundle
from service.domain.errors import ArtefactError
from service.policies import Policies, policy_of

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 5.0


class PolicyWatch:
    """Looks every `poll_s` seconds. The policies of the settings answer where none is activated; one that is takes the
    place of that which was trained for the same GPU and confidence.

    A bundle that is refused changes nothing: the policies that answer go on, and the refusal is counted.
    """

    def __init__(
        self, database: Database, own: Policies, *, poll_s: float, swap: Callable[[Policies], None] | None = None
    ) -> None:
        self.current = own
        self.swaps = 0
        self.refused: str | None = None
        self.refusals = 0
        self.swap = swap
        self._database, self._own, self._poll_s = database, own, poll_s
        self._active: str | None = None
        self._away = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """One look; what is active now answers from now on. Never raises: there is always a policy that answers."""
        try:
            wanted = active_digest(self._database)
            if wanted is None or any(policy.bundle.sha256 == wanted for policy in self._own):
                if self.current is not self._own:
                    self._take(self._own)
            elif wanted not in (self._active, self.refused):
                self._take(self._own.with_active(policy_of(read_bundle(self._database, wanted))), active=wanted)
            self._away = False
        except DatabaseAwayError as error:
            if not self._away:
                logger.warning("which bundle is active is unknown, going on with the present one: %s", error)
            self._away = True
        except ArtefactError as error:
            self.refused = wanted
            self.refusals += 1
            logger.error("the activated bundle is refused, going on with the present one: %s", error)

    def start(self) -> None:
        """Looks from now on, in a thread of its own: building a session takes longer than a request should wait."""
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, name="policy-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; one that hangs in the database is left behind."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=CLOSE_PATIENCE_S)

    def _run(self) -> None:
        while not self._ending.wait(self._poll_s):
            self.look()

    def _take(self, policies: Policies, *, active: str | None = None) -> None:
        before = list(self.current)
        for policy in policies:
            if policy not in before:
                logger.info("%s answers now, sha256 %s", policy.manifest.version, policy.bundle.sha256)
        self.current, self._active, self.refused = policies, active, None
        self.swaps += 1
        if self.swap is not None:
            self.swap(policies)
