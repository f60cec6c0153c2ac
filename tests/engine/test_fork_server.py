"""Processes that are forked from one that has imported the package."""

import os
import threading
from pathlib import Path

from tests.engine import fork_server


def run(tmp_path: Path, *module: str, **environment: str) -> tuple[int, str]:
    log = tmp_path / "log.txt"
    with log.open("ab") as output:
        process = fork_server.start(module, {"PATH": os.environ["PATH"], **environment}, tmp_path, output.fileno())
    return process.wait(60), log.read_text()


def test_a_forked_process_has_its_own_arguments_environment_folder_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['MINE'], os.getcwd(), __name__)\nsys.exit(7)\n"
    )

    code, output = run(tmp_path, "shown", "one", "two", MINE="mine")

    assert code == 7
    assert output == f"['one', 'two'] mine {tmp_path} __main__\n"


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    codes = []
    fork_server._server.cache_clear()
    first = threading.Thread(target=lambda: codes.append(run(tmp_path, "this")[0]))
    first.start()
    first.join()

    codes += [run(tmp_path, "this")[0] for _ in range(3)]

    assert codes == [0] * 4
