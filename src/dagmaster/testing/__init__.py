"""The test kit: for packages that add handlers and workflows, and for dagmaster's own tests.

- `run_handler`: one handler, called as a worker calls it.
- `Kit`: whole jobs on the real engine, in memory.
- `virtual_time`: lets an async test run on a clock that jumps over every wait.

See docs/guides/write-a-handler.md. The platform itself does not import this package.
"""

from dagmaster.testing.job import KitJob
from dagmaster.testing.kit import Kit
from dagmaster.testing.trial import Trial, run_handler
from dagmaster.testing.virtual import DeadlockError, Standstill, VirtualLoop, virtual_time

__all__ = ["DeadlockError", "Kit", "KitJob", "Standstill", "Trial", "VirtualLoop", "run_handler", "virtual_time"]
