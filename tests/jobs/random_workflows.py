"""Random workflows with scripts of what happens to every attempt of every node: everything that a run depends on,
except for timing.

A script is a list of what happens to a node's attempts, one after the other; after its last entry the node succeeds.
Templates read only direct all_of dependencies, which have always ended before the node starts. So the outcome of a run
follows from the definition and the scripts alone, whatever the order of events (unless the job is failing, see
`reference`).

Random values come from `Dice`: those of Hypothesis, which can shrink a case, or those of a seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import orjson
from hypothesis import strategies as st

from dagmaster.workflows.load import read
from dagmaster.workflows.model import Workflow

UNSUCCESSFUL_ENDS = ("handler", "engine", "environment", "lost", "returned", "overran")
Script = list[str]


@dataclass
class Case:
    workflow: Workflow
    scripts: dict[str, Script]  # by node id, children included; a node that is missing succeeds at once
    values: dict[str, int]  # the output `v` of a task, which is also the length of its output `items`
    reads: dict[str, str]  # by node id: the node whose output its template reads
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
class _Builder:
    dice: Dice
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    scripts: dict[str, Script] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)  # nodes on which further nodes can depend
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
    builder = _Builder(dice)
    builder.nodes["start"] = {"type": "start"}
    builder.open.append("start")
    for _ in range(dice.integer(1, max_blocks)):
        builder.pick([_task, _task, _conditional, _fan_out, _fan_out])(builder, _dependencies(builder))
    _close(builder)
    body = {"workflow_id": workflow_id, "fail_fast": builder.chance(20), "nodes": builder.nodes, "outputs": {}}
    if builder.chance(50):
        del body["outputs"]
    workflow = read(orjson.dumps(body), f"{workflow_id}.yaml", handlers=None, queues=None)
    return Case(
        workflow,
        builder.scripts,
        builder.values,
        builder.reads,
        seed=dice.integer(0, 2**16),
        chunk=dice.integer(1, 5),
    )


def _dependencies(builder: _Builder) -> dict[str, list[str]]:
    names = builder.dice.pick_many(builder.open, 1, 3, unique=True)
    if len(names) > 1 and builder.chance(35):
        cut = builder.dice.integer(0, len(names) - 2)
        return {"any_of": names[cut:], **({"all_of": names[:cut]} if cut else {})}
    return {"all_of": names}


def _add(builder: _Builder, node_id: str, node: dict[str, Any], depends_on: dict[str, list[str]]) -> str:
    node["depends_on"] = depends_on
    if builder.chance(45):
        node["importance"] = builder.pick(["important", "optional", "optional"])
    builder.nodes[node_id] = node
    builder.open.append(node_id)
    return node_id


def _script(builder: _Builder, node_id: str) -> None:
    if not builder.chance(40):
        return
    script = builder.dice.pick_many(UNSUCCESSFUL_ENDS, 0, 4)
    builder.scripts[node_id] = [*script, "data"] if builder.chance(25) else script


def _retry(builder: _Builder) -> dict[str, Any]:
    return {
        "max_attempts": builder.dice.integer(0, 2),
        "initial_delay_seconds": builder.pick([0, 1, 3]),
        "max_delay_seconds": 5,
        "backoff": builder.pick(["fixed", "exponential"]),
        "jitter": builder.chance(50),
    }


def _readable(builder: _Builder, depends_on: dict[str, list[str]]) -> str | None:
    """A task among the all_of dependencies, whose output a template may read."""
    tasks = [name for name in depends_on.get("all_of", ()) if name in builder.values]
    return builder.pick(tasks) if tasks and builder.chance(60) else None


def _task(builder: _Builder, depends_on: dict[str, list[str]]) -> str:
    node_id = builder.name("task")
    node: dict[str, Any] = {"handler": "work", "retry": _retry(builder)}
    if (read_from := _readable(builder, depends_on)) and builder.chance(40):
        node["params"] = {"v": f"{{{{ nodes.{read_from}.output.v }}}}"}
        builder.reads[node_id] = read_from
    builder.values[node_id] = builder.dice.integer(0, 4)
    _script(builder, node_id)
    return _add(builder, node_id, node, depends_on)


def _conditional(builder: _Builder, depends_on: dict[str, list[str]]) -> None:
    node_id = builder.name("cond")
    read_from = _readable(builder, depends_on)
    value = f"nodes.{read_from}.output.v" if read_from else str(builder.dice.integer(0, 4))
    if read_from:
        builder.reads[node_id] = read_from
    node: dict[str, Any] = {"type": "conditional", "importance": builder.pick(["critical", "important", "optional"])}
    builder.nodes[node_id] = node
    arms = [[_arm(builder, node_id) for _ in range(builder.dice.integer(1, 2))] for _ in range(2)]
    if builder.chance(50):
        node["condition"] = f"{{{{ {value} }}}} >= 2"
        # Without on_false the other node is on no branch: it only waits for the conditional.
        node["on_true"], node["on_false"] = arms[0], arms[1] if builder.chance(70) else []
    else:
        node["condition_field"] = value
        node["branches"] = [{"condition": ">= 2", "next": arms[0]}, {"default": True, "next": arms[1]}]
    node["depends_on"] = depends_on
    if builder.chance(20):
        builder.open.append(node_id)
    if builder.chance(60):
        join = {builder.pick(["any_of", "any_of", "all_of"]): [target for arm in arms for target in arm]}
        builder.pick([_task, _fan_out])(builder, join)


def _arm(builder: _Builder, conditional: str) -> str:
    return str(builder.pick([_task, _task, _fan_out])(builder, {"all_of": [conditional]}))


def _fan_out(builder: _Builder, depends_on: dict[str, list[str]]) -> str:
    node_id = builder.name("fan")
    node: dict[str, Any] = {"type": "fan_out", "task": {"handler": "child", "retry": _retry(builder)}}
    earlier = [name for name in depends_on.get("all_of", ()) if name in builder.fan_outs]
    if earlier and builder.chance(50):
        node["results_of"] = earlier[0]
    elif read_from := _readable(builder, depends_on):
        node["source"] = f"{{{{ nodes.{read_from}.output['items'] }}}}"
        builder.reads[node_id] = read_from
    else:
        node["source"] = list(range(builder.pick([0, 1, 2, 3, 5])))
    if builder.chance(30):
        node["batch_size"] = builder.dice.integer(1, 3)
    if builder.chance(40):
        node["max_parallel"] = builder.dice.integer(1, 3)
    if builder.chance(50):
        node["tolerate"] = builder.pick([1, 2, 0.5, 1.0])
    for index in range(5):
        _script(builder, f"{node_id}__{index}")
    _add(builder, node_id, node, depends_on)
    builder.fan_outs.append(node_id)
    for _ in range(builder.pick([0, 1, 1, 2])):
        _fan_in(builder, node_id)
    return node_id


def _fan_in(builder: _Builder, fan_out: str) -> None:
    node_id = builder.name("join") + "in"
    node: dict[str, Any] = {"type": "fan_in", "fan_out": fan_out}
    if builder.chance(30):
        node |= {"handler": "gather", "retry": _retry(builder)}
        _script(builder, node_id)
    else:
        node["aggregation"] = builder.pick(["collect", "concat", "sum", "first", "last"])
    others = [name for name in builder.open if name != fan_out]
    depends_on = {"all_of": [fan_out]}
    if builder.chance(25):
        depends_on = {builder.pick(["all_of", "any_of"]): [fan_out, builder.pick(others)]}
    elif builder.chance(15):
        # After a node that may start before the children have ended.
        depends_on = {"all_of": [_task(builder, {"any_of": [fan_out, builder.pick(others)]})]}
    _add(builder, node_id, node, depends_on)


def _close(builder: _Builder) -> None:
    """Connect nodes without a successor to the end."""
    pointed = {
        name for node in builder.nodes.values() for names in node.get("depends_on", {}).values() for name in names
    }
    leaves = [node_id for node_id in builder.nodes if node_id not in pointed]
    how = "any_of" if len(leaves) > 1 and builder.chance(20) else "all_of"
    builder.nodes["end"] = {"type": "end", "depends_on": {how: leaves}}
