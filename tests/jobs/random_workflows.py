"""Random workflows, and for every attempt of every node what its worker will do: everything but timing that a run
depends on.

A script is a list of what happens to a node's attempts, one after the other; after its last entry the node succeeds.
Templates read only direct all_of dependencies, whose end a node is certain to have seen: so the outcome of a run
follows from the definition and the scripts alone, whatever the order of events (unless the job is failing, see
`reference`).

What is random comes from dice: those of Hypothesis, which shrink, or those of a seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import orjson
from hypothesis import strategies as st

from dagmaster.workflows.load import read
from dagmaster.workflows.model import Workflow

HICCUPS = ("handler", "engine", "environment", "lost", "returned", "overran")
Script = list[str]


@dataclass
class Case:
    workflow: Workflow
    scripts: dict[str, Script]  # by node id, children included; a node that is missing succeeds at once
    values: dict[str, int]  # what a task puts out as `v`; its `items` are as many
    reads: dict[str, str]  # whose output a node's template reads
    seed: int = 0
    chunk: int = 5

    def __repr__(self) -> str:
        body = orjson.dumps(self.workflow.body(), option=orjson.OPT_INDENT_2).decode()
        return f"Case(scripts={self.scripts}, values={self.values}, seed={self.seed}, chunk={self.chunk})\n{body}"


class Dice(Protocol):
    def integer(self, low: int, high: int) -> int: ...

    def pick(self, options: Sequence[Any]) -> Any: ...

    def pick_many(self, options: Sequence[Any], least: int, most: int, *, unique: bool = False) -> list[Any]: ...


@dataclass(frozen=True)
class HypothesisDice:
    draw: Any

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def pick_many(self, options: Sequence[Any], least: int, most: int, *, unique: bool = False) -> list[Any]:
        return list(self.draw(st.lists(st.sampled_from(options), min_size=least, max_size=most, unique=unique)))


@dataclass(frozen=True)
class SeededDice:
    random: Random

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def pick_many(self, options: Sequence[Any], least: int, most: int, *, unique: bool = False) -> list[Any]:
        if unique:
            return self.random.sample(options, self.random.randint(least, min(most, len(options))))
        return self.random.choices(options, k=self.random.randint(least, most))


@dataclass
class _Making:
    dice: Dice
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    scripts: dict[str, Script] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)  # may be depended on
    fan_outs: list[str] = field(default_factory=list)

    def chance(self, percent: int) -> bool:
        return self.dice.integer(0, 99) >= 100 - percent

    def pick(self, options: list[Any]) -> Any:
        return self.dice.pick(options)

    def name(self, kind: str) -> str:
        return f"{kind}{len(self.nodes)}"


@st.composite
def cases(draw: Any, max_blocks: int = 6) -> Case:
    return make_case(HypothesisDice(draw), max_blocks)


def make_case(dice: Dice, max_blocks: int, workflow_id: str = "random") -> Case:
    making = _Making(dice)
    making.nodes["start"] = {"type": "start"}
    making.open.append("start")
    for _ in range(dice.integer(1, max_blocks)):
        making.pick([_task, _task, _conditional, _fan_out, _fan_out])(making, _dependencies(making))
    _close(making)
    body = {"workflow_id": workflow_id, "fail_fast": making.chance(20), "nodes": making.nodes, "outputs": {}}
    if making.chance(50):
        del body["outputs"]
    workflow = read(orjson.dumps(body), f"{workflow_id}.yaml", handlers=None, queues=None)
    return Case(
        workflow,
        making.scripts,
        making.values,
        making.reads,
        seed=dice.integer(0, 2**16),
        chunk=dice.integer(1, 5),
    )


def _dependencies(making: _Making) -> dict[str, list[str]]:
    names = making.dice.pick_many(making.open, 1, 3, unique=True)
    if len(names) > 1 and making.chance(35):
        cut = making.dice.integer(0, len(names) - 2)
        return {"any_of": names[cut:], **({"all_of": names[:cut]} if cut else {})}
    return {"all_of": names}


def _add(making: _Making, node_id: str, node: dict[str, Any], depends_on: dict[str, list[str]]) -> str:
    node["depends_on"] = depends_on
    if making.chance(45):
        node["importance"] = making.pick(["important", "optional", "optional"])
    making.nodes[node_id] = node
    making.open.append(node_id)
    return node_id


def _script(making: _Making, node_id: str) -> None:
    if not making.chance(40):
        return
    script = making.dice.pick_many(HICCUPS, 0, 4)
    making.scripts[node_id] = [*script, "data"] if making.chance(25) else script


def _retry(making: _Making) -> dict[str, Any]:
    return {
        "max_attempts": making.dice.integer(0, 2),
        "initial_delay_seconds": making.pick([0, 1, 3]),
        "max_delay_seconds": 5,
        "backoff": making.pick(["fixed", "exponential"]),
        "jitter": making.chance(50),
    }


def _readable(making: _Making, depends_on: dict[str, list[str]]) -> str | None:
    """A task among the all_of dependencies, whose output a template may read."""
    tasks = [name for name in depends_on.get("all_of", ()) if name in making.values]
    return making.pick(tasks) if tasks and making.chance(60) else None


def _task(making: _Making, depends_on: dict[str, list[str]]) -> str:
    node_id = making.name("task")
    node: dict[str, Any] = {"handler": "work", "retry": _retry(making)}
    if (read_from := _readable(making, depends_on)) and making.chance(40):
        node["params"] = {"v": f"{{{{ nodes.{read_from}.output.v }}}}"}
        making.reads[node_id] = read_from
    making.values[node_id] = making.dice.integer(0, 4)
    _script(making, node_id)
    return _add(making, node_id, node, depends_on)


def _conditional(making: _Making, depends_on: dict[str, list[str]]) -> None:
    node_id = making.name("cond")
    read_from = _readable(making, depends_on)
    value = f"nodes.{read_from}.output.v" if read_from else str(making.dice.integer(0, 4))
    if read_from:
        making.reads[node_id] = read_from
    node: dict[str, Any] = {"type": "conditional", "importance": making.pick(["critical", "important", "optional"])}
    making.nodes[node_id] = node
    arms = [[_arm(making, node_id) for _ in range(making.dice.integer(1, 2))] for _ in range(2)]
    if making.chance(50):
        node["condition"] = f"{{{{ {value} }}}} >= 2"
        # Without on_false the other arm is on no branch: it only waits for the conditional.
        node["on_true"], node["on_false"] = arms[0], arms[1] if making.chance(70) else []
    else:
        node["condition_field"] = value
        node["branches"] = [{"condition": ">= 2", "next": arms[0]}, {"default": True, "next": arms[1]}]
    node["depends_on"] = depends_on
    if making.chance(20):
        making.open.append(node_id)
    if making.chance(60):
        join = {making.pick(["any_of", "any_of", "all_of"]): [target for arm in arms for target in arm]}
        making.pick([_task, _fan_out])(making, join)


def _arm(making: _Making, conditional: str) -> str:
    return str(making.pick([_task, _task, _fan_out])(making, {"all_of": [conditional]}))


def _fan_out(making: _Making, depends_on: dict[str, list[str]]) -> str:
    node_id = making.name("fan")
    node: dict[str, Any] = {"type": "fan_out", "task": {"handler": "child", "retry": _retry(making)}}
    earlier = [name for name in depends_on.get("all_of", ()) if name in making.fan_outs]
    if earlier and making.chance(50):
        node["results_of"] = earlier[0]
    elif read_from := _readable(making, depends_on):
        node["source"] = f"{{{{ nodes.{read_from}.output['items'] }}}}"
        making.reads[node_id] = read_from
    else:
        node["source"] = list(range(making.pick([0, 1, 2, 3, 5])))
    if making.chance(30):
        node["batch_size"] = making.dice.integer(1, 3)
    if making.chance(40):
        node["max_parallel"] = making.dice.integer(1, 3)
    if making.chance(50):
        node["tolerate"] = making.pick([1, 2, 0.5, 1.0])
    for index in range(5):
        _script(making, f"{node_id}__{index}")
    _add(making, node_id, node, depends_on)
    making.fan_outs.append(node_id)
    for _ in range(making.pick([0, 1, 1, 2])):
        _fan_in(making, node_id)
    return node_id


def _fan_in(making: _Making, fan_out: str) -> None:
    node_id = making.name("join") + "in"
    node: dict[str, Any] = {"type": "fan_in", "fan_out": fan_out}
    if making.chance(30):
        node |= {"handler": "gather", "retry": _retry(making)}
        _script(making, node_id)
    else:
        node["aggregation"] = making.pick(["collect", "concat", "sum", "first", "last"])
    others = [name for name in making.open if name != fan_out]
    depends_on = {"all_of": [fan_out]}
    if making.chance(25):
        depends_on = {making.pick(["all_of", "any_of"]): [fan_out, making.pick(others)]}
    elif making.chance(15):
        # Behind a node that may go before the children have ended.
        depends_on = {"all_of": [_task(making, {"any_of": [fan_out, making.pick(others)]})]}
    _add(making, node_id, node, depends_on)


def _close(making: _Making) -> None:
    """Connect nodes without a successor to the end."""
    pointed = {
        name for node in making.nodes.values() for names in node.get("depends_on", {}).values() for name in names
    }
    leaves = [node_id for node_id in making.nodes if node_id not in pointed]
    how = "any_of" if len(leaves) > 1 and making.chance(20) else "all_of"
    making.nodes["end"] = {"type": "end", "depends_on": {how: leaves}}
