"""An S3 server for tests: moto, with a log of its requests. Run as a program: PORT LOG_FILE.

moto checks whether an object exists, and writes it later. In S3 this is one atomic step,
so this server runs such requests one by one.
"""

import json
import sys
import threading
from pathlib import Path

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple


def main() -> None:
    port, log = int(sys.argv[1]), Path(sys.argv[2]).open("a", buffering=1)  # noqa: SIM115
    one_by_one = threading.Lock()
    app = DomainDispatcherApplication(create_backend_app)

    def logged(environ, start_response):
        def start(status, headers, *exc_info):
            length = {name.lower(): value for name, value in headers}.get("content-length", "0")
            entry = {
                "method": environ["REQUEST_METHOD"],
                "path": environ["PATH_INFO"],
                "query": environ["QUERY_STRING"],
                "range": environ.get("HTTP_RANGE"),
                "status": int(status.split()[0]),
                "bytes": int(length),
            }
            log.write(json.dumps(entry) + "\n")
            return start_response(status, headers, *exc_info)

        if environ.get("HTTP_IF_NONE_MATCH") != "*":
            return app(environ, start)
        with one_by_one:
            return list(app(environ, start))

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_):
            pass

    run_simple("127.0.0.1", port, logged, threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    main()
