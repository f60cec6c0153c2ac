"""The handlers that ship, named as strings: nothing of what they import is imported here."""

from dagmaster.handlers.registry import Registration


def _example(name: str, *, is_async: bool = True, function: str | None = None) -> Registration:
    return Registration(name, f"dagmaster.handlers.examples:{function or name}", is_async=is_async)


REGISTRATIONS = (
    _example("echo"),
    _example("hello_world"),
    _example("noop"),
    _example("sleep"),
    _example("sleep_blocking", is_async=False),
    _example("hang", is_async=False),
    _example("fail"),
    _example("flaky_echo"),
    _example("multi_phase", is_async=False),
    _example("size_check"),
    _example("chunk_processor"),
    _example("make_list"),
    _example("collect_results"),
    _example("crash", is_async=False),
    _example("allocate", is_async=False),
)
