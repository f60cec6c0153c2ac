"""A stand-in of `az` for scripts/deploy.sh: the job of the schema and the container apps, in a file.

It supports the commands that the script uses and refuses others. As in the real `az`, `containerapp job update --image`
sets the image of the job's container, but not those of init containers.
"""

import json
import os
import sys
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> str:
    file = Path(os.environ["AZURE_STATE"])
    state = json.loads(file.read_text())
    command = " ".join(takewhile(lambda word: not word.startswith("-"), arguments))
    response = COMMANDS[command](state, dict(pairwise(arguments)))
    file.write_text(json.dumps(state))
    return response


def update_job(state: dict[str, Any], options: dict[str, str]) -> str:
    (container,) = state["job"]["containers"]
    container["image"] = options["--image"]
    return ""


def start_job(state: dict[str, Any], options: dict[str, str]) -> str:
    containers = [*state["job"]["initContainers"], *state["job"]["containers"]]
    for container in containers:
        state["done"].append(["ran", container["image"], container["args"]])
    return f"{options['--name']}-1"


def show_execution(state: dict[str, Any], options: dict[str, str]) -> str:
    assert options["--job-execution-name"] == f"{options['--name']}-1"
    return str(state["job_status"])


def update_app(state: dict[str, Any], options: dict[str, str]) -> str:
    state["done"].append(["set", options["--name"], options["--image"]])
    return ""


def list_revisions(state: dict[str, Any], options: dict[str, str]) -> str:
    return "Unhealthy\nFailed" if options["--name"] == state["broken_app"] else "Healthy\nRunning"


COMMANDS = {
    "containerapp job update": update_job,
    "containerapp job start": start_job,
    "containerapp job execution show": show_execution,
    "containerapp update": update_app,
    "containerapp revision list": list_revisions,
}

if __name__ == "__main__":
    print(main(sys.argv[1:]))
