"""The results of a run as tables: on the terminal, and in docs/performance.md, from the file that the run has written.

python bench/report.py bench/results/engine.json      updates the part of docs/performance.md between its two marks
"""

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs/performance.md"
BEGIN, END = "<!-- engine: begin -->", "<!-- engine: end -->"
COMPARED = (
    "fan_out tasks/s N=1,000",
    "fan_out tasks/s N=10,000",
    "chain ms/step",
    "small_jobs/s",
    "MB, all processes",
    "statements/task",
    "commits/task",
    "WAL bytes/task",
    "PostgreSQL CPU ms/task",
    "Python CPU ms/task",
)
RATIOS = COMPARED[:4]
ALONE = ("large", "orchestrators", "idle", "backlog", "steady", "start")
WHOLE = ("compare", "large", "orchestrators", "idle", "backlog", "start", "profile")

Rows = list[list[str]]


def number(value: float) -> str:
    """With three significant digits."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def spread(values: list[float]) -> str:
    """The median, with the lowest and highest value if there are several."""
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}–{number(max(values))})"


def sections(measured: dict[str, Any]) -> list[tuple[str, Rows]]:
    """Every table of a run: its title, and its rows, the first of which is the header."""
    sections: list[tuple[str, Rows]] = [("Targets", _targets(measured["targets"]))]
    if compare := measured.get("compare"):
        sections += [("All systems: median (lowest–highest)", _contenders(measured, compare))]
        if compare["ratios"]:
            sections += [("dagmaster over each peer, from adjacent measurements", _ratios(compare["ratios"]))]
        sections += [("References", _plain(compare["references"]))]
    sections += [(_title(part), _plain(measured[part])) for part in ALONE if part in measured]
    if profile := measured.get("profile"):
        sections += [("CPU time in ms", _shares(profile))]
        sections += [
            (f"Statements of {what}", _statements(facts["statements"]))
            for what, facts in profile.items()
            if isinstance(facts, dict)
        ]
    return sections


def _title(part: str) -> str:
    return {
        "large": "large_fan_out: 100,000 children",
        "orchestrators": "orchestrators: 20 jobs of 1,000 children, by one and by three",
        "idle": "idle: no work",
        "backlog": "fan_out with many other tasks in the tables",
        "steady": "Constant load",
        "start": "Start",
    }[part]


def _targets(judged: list[dict[str, Any]]) -> Rows:
    rows = [["target", "measured", "limit", "", "stretch goal", ""]]
    for target in judged:
        sign = "≥" if target["at_least"] else "≤"
        moonshot = target["moonshot"]
        reached = moonshot is not None and (
            target["value"] >= moonshot if target["at_least"] else target["value"] <= moonshot
        )
        limit = "" if math.isinf(target["limit"]) else f"{sign} {number(target['limit'])}"
        rows.append(
            [
                target["what"],
                number(target["value"]),
                limit,
                ("met" if target["holds"] else "MISSED") if limit else "",
                f"{sign} {number(moonshot)}" if moonshot is not None else "",
                "reached" if reached else "",
            ]
        )
    return rows


def _contenders(measured: dict[str, Any], compare: dict[str, Any]) -> Rows:
    figures = compare["figures"]
    names = [f"{name} {measured['versions'].get(name, '')}".strip() for name in figures]
    return [["", *names], *([name, *(spread(values[name]) for values in figures.values())] for name in COMPARED)]


def _ratios(ratios: dict[str, dict[str, list[float]]]) -> Rows:
    return [["", *ratios], *([name, *(spread(values[name]) for values in ratios.values())] for name in RATIOS)]


def _plain(figures: dict[str, list[float]]) -> Rows:
    return [["", "median (lowest–highest)"], *([name, spread(v)] for name, v in figures.items() if name != "findings")]


def _shares(profile: dict[str, Any]) -> Rows:
    facts = {what: measured for what, measured in profile.items() if isinstance(measured, dict)}
    sides = list(dict.fromkeys(side for measured in facts.values() for side in measured["cpu ms"]))
    rows = [["", *sides, "total", "elapsed"]]
    for what, measured in facts.items():
        each = [measured["cpu ms"].get(side, 0.0) for side in sides]
        rows.append([f"{what}: per unit", *map(number, each), number(sum(each)), f"{number(measured['seconds'])} s"])
    return rows


def _statements(statements: list[dict[str, Any]]) -> Rows:
    rows = [["statement", "calls", "rows", "ms per call", "ms per unit"]]
    for one in statements:
        rows.append([one["name"], *(number(one[key]) for key in ("calls", "rows", "ms a call", "ms"))])  # noqa: PERF401
    return rows


def as_text(rows: Rows) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_padded(row, widths) for row in rows)


def _padded(row: list[str], widths: list[int]) -> str:
    first, *others = row
    cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def as_markdown(rows: Rows) -> str:
    head, *body = rows
    rule = "|".join(["", "---", *["--:"] * (len(head) - 1), ""])
    return "\n".join([_line(head), rule, *map(_line, body)])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def show(measured: dict[str, Any]) -> None:
    for title, rows in sections(measured):
        print(f"\n{title}\n{as_text(rows)}")
    if history := measured.get("compare", {}).get("history"):
        print(f"\nverify-history: {history['jobs']} jobs, {history['events']} events, {history['findings']} findings")


def page(measured: dict[str, Any]) -> str:
    """The part of the page that is generated from a run."""
    lines = [
        f"`{measured['command']}`, {measured['date']}, {measured['rounds']} rounds, default durability.",
        f"{measured['hardware']}, Python {measured['python']}, PostgreSQL {measured['postgres']}.",
    ]
    if history := measured.get("compare", {}).get("history"):
        lines.append(
            f"`verify-history` afterwards: {history['jobs']:,} jobs, {history['events']:,} events, "
            f"{history['findings']} findings."
        )
    for title, rows in sections(measured):
        lines.append(f"\n### {title}\n\n{as_markdown(rows)}")
    return "\n".join(lines)


def update_page(text: str, measured: dict[str, Any]) -> str:
    before, _, following = text.partition(BEGIN)
    _, mark, after = following.partition(END)
    if not mark:
        raise SystemExit(f"report: {PAGE.name} has no part between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{page(measured)}\n{END}{after}"


def is_whole(measured: dict[str, Any]) -> bool:
    """Whether a run may be published: all peers took part, with full counts."""
    peers = {lock.stem for lock in Path(__file__).with_name("peers").glob("*.txt")}
    return measured["scale"] == 1 and peers <= measured["versions"].keys() and all(part in measured for part in WHOLE)


def main() -> None:
    measured = json.loads(Path(sys.argv[1]).read_text())
    if not is_whole(measured):
        print(f"report: {PAGE.name} is not changed, because this was not a complete run")
        return
    PAGE.write_text(update_page(PAGE.read_text(), measured))


if __name__ == "__main__":
    main()
