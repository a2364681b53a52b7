"""The service with the audit that is usually written: each request adds a row in a session of its own and commits it.

What group commit is compared with: a session per request in a worker thread, as FastAPI's tutorial on SQL databases has
it. Everything else is the service's own.
"""

import sys

import uvicorn
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.app import create_app
from service.db.database import Database
from service.db.journal import Journal
from service.db.record import Record
from service.db.tables import RecommendationRow
from service.server.run import SWITCH_INTERVAL_S
from service.settings import Settings


class CommitEach(Journal):
    """`record` is one transaction; the threads of a journal are not started."""

    database: Database

    def start(self) -> None:
        """Nothing to start."""

    async def record(self, *records: Record) -> None:
        """Returns after a commit for each."""
        for record in records:
            await run_in_threadpool(self._commit_one, record)

    def _commit_one(self, record: Record) -> None:
        with Session(self.database.engine) as session:
            session.add(RecommendationRow(**record.values))
            session.commit()


def main() -> None:
    """Serves until it is killed."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings = Settings()
    app = create_app(settings)
    memory = app.state.api.memory
    memory.journal.__class__ = CommitEach
    memory.journal.database = memory.database
    uvicorn.run(app, port=settings.port, loop="uvloop", http="httptools", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
