"""Follows which bundle the database names as active, and swaps it in once it is verified and ready."""

import logging
import threading
from collections.abc import Callable

from service.db.database import Database, DatabaseAwayError
from service.db.policies import active_digest, read_bundle
from service.domain.errors import ArtefactError
from service.recommend import Policy, policy_of

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 5.0


class PolicyWatch:
    """Looks every `poll_s` seconds. The policy of the settings answers where none is activated.

    A bundle that is refused changes nothing: the policy that answers goes on, and the refusal is counted.
    """

    def __init__(
        self, database: Database, own: Policy, *, poll_s: float, swap: Callable[[Policy], None] | None = None
    ) -> None:
        self.current = own
        self.swaps = 0
        self.refused: str | None = None
        self.refusals = 0
        self.swap = swap
        self._database, self._own, self._poll_s = database, own, poll_s
        self._away = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """One look; what is active now answers from now on. Never raises: there is always a policy that answers."""
        try:
            wanted = active_digest(self._database)
            if wanted is None:
                if self.current is not self._own:
                    self._take(self._own)
            elif wanted not in (self.current.bundle.sha256, self.refused):
                self._take(policy_of(read_bundle(self._database, wanted)))
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

    def _take(self, policy: Policy) -> None:
        logger.info("%s answers now, sha256 %s", policy.bundle.manifest.version, policy.bundle.sha256)
        self.current, self.refused = policy, None
        self.swaps += 1
        if self.swap is not None:
            self.swap(policy)
