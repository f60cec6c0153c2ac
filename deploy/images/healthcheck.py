"""Exit with 0 if the process in this container is alive: the health check of the images.

It imports nothing but the standard library, because it runs every few seconds. Kubernetes and Container Apps send their
own requests instead (deploy/kubernetes, deploy/azure).
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

# By role: the setting of its port, and the default.
PORTS = {
    "orchestrator": ("API_PORT", 8000),
    "worker": ("HEALTH_PORT", 8002),
    "serving": ("SERVING_PORT", 8003),
    "gateway": ("GATEWAY_PORT", 8001),
}


def main() -> int:
    role = os.environ.get("RUN_MODE", "").lower()
    if role == "orchestrator" and os.environ.get("API_ENABLED", "").lower() in ("false", "0", "no", "off"):
        role = "worker"  # without the API, it serves health on the port of workers
    setting, default = PORTS[role]
    port = int(os.environ.get(setting) or default)
    connection = HTTPConnection("127.0.0.1", port, timeout=4)
    try:
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        print(f"http://127.0.0.1:{port}/livez: {error}")
        return 1
    print(f"http://127.0.0.1:{port}/livez: {status}")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
