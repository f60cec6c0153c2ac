"""The app on a port, as a task beside the orchestrator's loop: started and stopped with it."""

from dagmaster.api.services import ApiServices
from dagmaster.observe import log
from dagmaster.web.server import WebServer

_log = log.get("api")


class ApiServer(WebServer):
    """Serves until `stop`. Streams are ended first, because open streams would delay the stop."""

    async def run(self) -> None:
        _log.info("the API listens", url=self.url)
        await super().run()

    async def stop(self) -> None:
        """A stop request during start-up takes effect when the start has finished."""
        await self.until_started()
        services: ApiServices = self._app.state.services
        if self.is_started:
            await services.events.close()
            await services.changes.close()
            await services.task_watch.close()
        self.finish()
