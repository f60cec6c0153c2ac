"""Render the templates of one decision within its time.

A decision is made while the job's row is locked, in the event loop of the orchestrator, so a template may take only a
short time there. One that needs longer raises `SlowTemplate`: the node waits, the caller renders the template in
another thread and passes the outcome to the next decision. A template that exceeds its total time fails its node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagmaster.errors import DagmasterError, unexpected
from dagmaster.jobs.task_params import ByteBudget
from dagmaster.workflows.expressions import Compiled, TemplateContext, too_slow
from dagmaster.workflows.meter import TEMPLATE_SECONDS, UNITS_PER_SECOND, Meter, OutOfTime

Key = tuple[str | int, ...]  # the node, and which of its templates

AT_ONCE_SECONDS = 0.05  # the time for a template within a decision; heartbeats and other jobs wait meanwhile
RENDERING: Any = object()  # stands for the outcome of a template that is still being rendered


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """CPU time for one template: in total, and before it is rendered outside of the decision (None: never)."""

    seconds: float = TEMPLATE_SECONDS
    at_once_seconds: float | None = None


@dataclass(eq=False)
class SlowTemplate(Exception):
    """This template is to be rendered outside of the decision."""

    key: Key
    compiled: Compiled
    context: TemplateContext
    seconds: float

    def outcome(self) -> Any:
        """The value, or the error with which the template fails. Called in another thread."""
        try:
            return self.compiled.render(self.context, Meter(self.seconds))
        except OutOfTime:
            return too_slow(self.compiled.text, self.seconds)
        except DagmasterError as error:
            return error
        except Exception as error:  # a bug of this software: the node fails with it
            return unexpected(error)


class TemplateRendering:
    """The templates of one decision; `outcomes` are those that were rendered outside of it."""

    def __init__(self, limits: RenderLimits, budget: ByteBudget, outcomes: Mapping[Key, Any]) -> None:
        self._limits = limits
        self._budget = budget
        self._outcomes = dict(outcomes)

    def render(self, key: Key, compiled: Compiled, context: TemplateContext) -> Any:
        """The value of a template. Raises SlowTemplate if it needs longer than a decision may take."""
        if compiled.is_cheap:
            return compiled.render(context)
        if key not in self._outcomes:
            self._outcomes[key] = self._render(key, compiled, context)
        elif self._outcomes[key] is RENDERING:
            raise SlowTemplate(key, compiled, context, self._limits.seconds)
        if isinstance(outcome := self._outcomes[key], DagmasterError):
            raise outcome
        return outcome

    def _render(self, key: Key, compiled: Compiled, context: TemplateContext) -> Any:
        seconds, at_once = self._limits.seconds, self._limits.at_once_seconds
        meter = Meter(seconds if at_once is None else min(at_once, seconds))
        try:
            return compiled.render(context, meter)
        except OutOfTime:
            if at_once is None:
                raise too_slow(compiled.text, seconds) from None
            raise SlowTemplate(key, compiled, context, seconds) from None
        finally:
            self._budget.render_seconds_left -= meter.units / UNITS_PER_SECOND
