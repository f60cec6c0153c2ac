"""The map server on a port: started and stopped as a role."""

from dagmaster import log
from dagmaster.web.server import WebServer

_log = log.get("serving")


class MapServer(WebServer):
    """Serves until `stop`; what is under way then is finished first."""

    async def run(self) -> None:
        _log.info("maps are served", url=self.url)
        await super().run()

    def stop(self) -> None:
        self.finish()
