"""The rules that a workflow must follow: what is refused, for which node, in which line."""

import pytest

from dagmaster.workflows.check import check
from dagmaster.workflows.nearest import or_known

from .builders import HANDLERS, QUEUES, a_graph, a_workflow, problems_in, the_problem

START, END = "  start: {type: start, next: a}\n", "  end: {type: end}\n"
FAN = "  fan: {type: fan_out, source: [1], task: {handler: echo}, next: %s}\n"


def only(nodes: str, words: str, *, head: str = "") -> tuple[str | None, int, int]:
    """Node, line and column of the only problem."""
    problems = problems_in(nodes, head=head)
    problem = the_problem(problems, words)
    assert len(problems) == 1, [p.message for p in problems]
    return problem.node, problem.line, problem.column


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    ("node", "words", "place"),
    [
        (
            "{handler: echo, next: [end, ende]}",
            "`next` names 'ende', which does not exist; did you mean 'end'?",
            (4, 34),
        ),
        ("{handler: echo, next: end, depends_on: {all_of: [start, strat]}}", "`all_of` names 'strat'", (4, 62)),
        ("{handler: echo, next: end, depends_on: {any_of: [start, strat]}}", "`any_of` names 'strat'", (4, 62)),
        ("{type: conditional, condition: 'true', on_true: end, on_false: nd}", "`on_false` names 'nd'", (4, 69)),
        (
            "{type: conditional, condition_field: job.x, branches: [{default: true, next: end}, "
            "{condition: '< 1', next: nd}]}",
            "`next` names 'nd'",
            (4, 114),
        ),
        ("{type: fan_out, results_of: fna, task: {handler: echo}, next: end}", "`results_of` names 'fna'", (4, 34)),
        ("{type: fan_in, fan_out: fna, next: end}", "`fan_out` names 'fna'", (4, 30)),
    ],
)
def test_a_name_that_is_not_a_node_is_refused(node, words, place):
    assert only(START + f"  a: {node}\n" + END, words) == ("a", *place)


@pytest.mark.requirement("W3")
def test_a_misspelt_name_causes_no_problems_of_other_nodes():
    nodes = (
        "  start: {type: start, next: split}\n"
        "  split: {type: fan_out, source: [1], task: {handler: echo}, next: gahter}\n"
        "  gather: {type: fan_in, next: [report]}\n"
        "  report: {handler: echo, params: {x: '{{ nodes.split.output }}'}, depends_on: {all_of: gathr}, next: end}\n"
        + END
    )

    messages = [problem.message for problem in problems_in(nodes)]

    assert messages == [
        "`next` names 'gahter', which does not exist; did you mean 'gather'?",
        "`all_of` names 'gathr', which does not exist; did you mean 'gather'?",
    ]


@pytest.mark.requirement("W3")
def test_thousands_of_mistakes_are_reported_in_limited_time():
    names = ", ".join(f"x{n}" for n in range(15_000))

    problems = problems_in(f"  start: {{type: start, next: [{names}]}}\n" + END)

    assert len(problems) == 200


@pytest.mark.requirement("W3")
def test_a_cycle_is_named():
    nodes = START + "  a: {handler: echo, next: b}\n  b: {handler: echo, next: [a, end]}\n" + END

    assert only(nodes, "a cycle: a → b → a") == ("a", 4, 3)


@pytest.mark.requirement("W3")
def test_a_node_that_follows_itself_is_a_cycle():
    assert only(START + "  a: {handler: echo, next: [a, end]}\n" + END, "a cycle: a → a") == ("a", 4, 3)


@pytest.mark.requirement("W3")
def test_each_of_several_cycles_is_named_once():
    nodes = "".join(
        [
            START,
            "  a: {handler: echo, next: b}\n  b: {handler: echo, next: [a, c]}\n",
            "  c: {handler: echo, next: d}\n  d: {handler: echo, next: [c, end]}\n",
            END,
        ]
    )

    messages = [problem.message for problem in problems_in(nodes)]

    assert [message.split(";")[0] for message in messages] == ["a cycle: a → b → a", "a cycle: c → d → c"]


@pytest.mark.requirement("W3")
def test_a_cycle_is_refused_even_if_depends_on_overrides_it():
    nodes = (
        START
        + "  a: {handler: echo, next: b, depends_on: {all_of: start}}\n  b: {handler: echo, next: [a, end]}\n"
        + END
    )

    assert only(nodes, "a cycle: a → b → a")[0] == "a"


@pytest.mark.requirement("W3")
def test_an_unreachable_node_is_refused():
    assert only(
        START + "  a: {handler: echo, next: end}\n  b: {handler: echo, next: end}\n" + END, "cannot be reached"
    )[:2] == (
        "b",
        5,
    )


@pytest.mark.requirement("W3")
def test_depends_on_alone_is_an_edge():
    graph = a_graph(
        "  start: {type: start}\n  a: {handler: echo, depends_on: {all_of: start}}\n"
        "  end: {type: end, depends_on: {any_of: [a]}}\n"
    )

    assert (graph.all_of["a"], graph.any_of["end"]) == (("start",), ("a",))
    assert graph.order == ("start", "a", "end")


@pytest.mark.requirement("W3")
def test_a_node_from_which_no_path_leads_to_an_end_is_refused():
    nodes = "  start: {type: start, next: [a, b]}\n  a: {handler: echo, next: end}\n  b: {handler: echo}\n" + END

    assert only(nodes, "no path leads from here to an end")[:2] == ("b", 5)


@pytest.mark.requirement("W3")
def test_a_next_that_the_depends_on_of_its_target_overrides_is_no_path():
    nodes = (
        "  start: {type: start, next: [a, b]}\n  a: {handler: echo, next: end}\n  b: {handler: echo, next: end}\n"
        "  end: {type: end, depends_on: {all_of: [a]}}\n"
    )

    assert only(nodes, "no path leads from here to an end")[0] == "b"


@pytest.mark.requirement("W2")
def test_exactly_one_start_is_required():
    assert (
        only(START + "  more: {type: start, next: a}\n  a: {handler: echo, next: end}\n" + END, "several start")[0]
        == "more"
    )
    the_problem(problems_in("  a: {handler: echo, next: end}\n" + END), "no node of type start")


@pytest.mark.requirement("W2")
def test_at_least_one_end_is_required():
    assert only(START + "  a: {handler: echo}\n", "no node of type end") == (None, 2, 1)


@pytest.mark.requirement("W3")
def test_a_start_has_no_dependencies_and_an_end_has_no_next():
    nodes = "  start: {type: start, next: a, depends_on: {all_of: []}}\n  a: {handler: echo, next: end}\n" + END
    the_problem(problems_in(nodes), "a start node cannot have dependencies; remove depends_on")

    nodes = START + "  a: {handler: echo, next: end}\n  end: {type: end, next: start}\n"
    problems = problems_in(nodes)
    assert the_problem(problems, "an end node cannot have a `next`").line == 5
    assert the_problem(problems, "a start node cannot have dependencies: 'end' leads to it").node == "start"


@pytest.mark.requirement("W3")
def test_an_empty_depends_on_is_refused():
    nodes = START + "  a: {handler: echo, next: end, depends_on: {}}\n" + END

    the_problem(problems_in(nodes), "`depends_on` is empty")


@pytest.mark.requirement("W7")
def test_a_name_like_that_of_a_child_is_refused():
    nodes = "  start: {type: start, next: a__12}\n  a__12: {handler: echo, next: end}\n" + END

    assert only(nodes, "ends like the child of a fan_out") == ("a__12", 4, 3)


# --- fan_in and fan_out ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("W3")
def test_a_fan_in_without_a_fan_out_before_it_is_refused():
    assert only(START + "  a: {type: fan_in, next: end}\n" + END, "there is no fan_out before this fan_in")[:2] == (
        "a",
        4,
    )


@pytest.mark.requirement("W3")
def test_a_fan_in_with_two_equally_near_fan_outs_must_name_one():
    nodes = "".join(
        [
            "  start: {type: start, next: [a, b]}\n",
            FAN.replace("fan:", "a:") % "in",
            FAN.replace("fan:", "b:") % "in",
            "  in: {type: fan_in, next: end%s}\n",
            END,
        ]
    )

    assert only(nodes % "", "the fan_outs 'a', 'b' are equally near; name one with `fan_out:`")[0] == "in"
    a_workflow(nodes % ", fan_out: b")


@pytest.mark.requirement("W3")
def test_a_fan_in_must_name_a_fan_out_before_it():
    nodes = "  start: {type: start, next: fan}\n" + FAN % "a" + "  a: {type: fan_in, fan_out: %s, next: [end, b]}\n"
    nodes += "  b: {type: fan_out, source: [1], task: {handler: echo}, next: end}\n" + END

    assert only(nodes % "start", "'start', which is not a fan_out")[0] == "a"
    assert only(nodes % "b", "'b', which is not upstream")[0] == "a"


@pytest.mark.requirement("W8")
def test_a_fan_in_with_fields_of_a_task_needs_a_handler():
    nodes = "  start: {type: start, next: fan}\n" + FAN % "a" + "  a: {type: fan_in, params: {x: 1}, next: end}\n" + END

    assert only(nodes, "`params` requires a `handler` in a fan_in") == ("a", 5, 21)


@pytest.mark.requirement("W8")
def test_a_fan_in_has_a_handler_or_an_aggregation():
    nodes = (
        "  start: {type: start, next: fan}\n"
        + FAN % "a"
        + "  a: {type: fan_in, handler: echo, aggregation: sum, next: end}\n"
    )

    assert only(nodes + END, "`aggregation` has no effect in a fan_in with a `handler`")[0] == "a"


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("fields", ["", "source: [1], results_of: fan, "])
def test_a_fan_out_has_either_a_source_or_results_of(fields):
    nodes = "  start: {type: start, next: fan}\n" + FAN % "a"
    nodes += f"  a: {{type: fan_out, {fields}task: {{handler: echo}}, next: end}}\n" + END

    assert only(nodes, "either `source` or `results_of`")[:2] == ("a", 5)


@pytest.mark.requirement("W7")
def test_results_of_must_name_a_fan_out_before_it():
    nodes = "  start: {type: start, next: [a, fan]}\n" + FAN % "end"
    nodes += "  a: {type: fan_out, results_of: %s, task: {handler: echo}, next: end}\n" + END

    assert only(nodes % "start", "'start', which is not a fan_out")[0] == "a"
    assert only(nodes % "fan", "'fan', which is not upstream")[0] == "a"


# --- conditionals ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("", "either `condition` with on_true"),
        (
            "condition: 'true', on_true: b, condition_field: job.x, branches: [{default: true, next: b}]",
            "either `condition`",
        ),
        ("condition_field: job.x, on_true: b", "on_true and on_false belong to `condition`"),
        (
            "condition_field: job.x, branches: [{condition: '< 1', next: b}]",
            "exactly one branch must have `default: true`, not 0",
        ),
        (
            "condition_field: job.x, branches: [{default: true, next: b}, {default: true, next: b}]",
            "exactly one branch must have `default: true`, not 2",
        ),
        (
            "condition_field: job.x, branches: [{default: true, next: b}, {next: b}]",
            "a branch has either a condition or `default: true`",
        ),
        (
            "condition_field: job.x, branches: [{default: true, condition: '< 1', next: b}]",
            "a branch has either a condition or `default: true`",
        ),
        (
            "condition_field: job.x, branches: [{default: true, next: b}, {condition: '< 1', next: []}]",
            "a branch needs a `next`",
        ),
        ("branches: [{default: true, next: b}]", "`branches` need a condition_field"),
        ("condition: 'true', on_true: b, next: b", "a conditional has no `next`"),
    ],
)
def test_a_conditional_has_exactly_one_of_its_two_forms(fields, words):
    nodes = START + f"  a: {{type: conditional, {fields}}}\n  b: {{handler: echo, next: end}}\n" + END

    problem = the_problem(problems_in(nodes), words)

    assert (problem.node, problem.line) == ("a", 4)


@pytest.mark.requirement("W6")
def test_a_condition_needs_a_branch():
    nodes = START + "  a: {type: conditional, condition: 'true'}\n" + END

    the_problem(problems_in(nodes), "`condition` needs on_true or on_false")


@pytest.mark.requirement("W6")
def test_the_target_of_a_branch_must_depend_on_the_conditional():
    nodes = (
        START + "  a: {type: conditional, condition: 'true', on_true: b, on_false: end}\n"
        "  b: {handler: echo, next: end, depends_on: {all_of: [start]}}\n" + END
    )

    assert only(nodes, "'a' branches to this node, but its own depends_on does not name it") == ("b", 5, 33)


# --- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    ("node", "column"),
    [
        ("{handler: ecko, next: end}", 16),
        ("{type: fan_out, source: [1], task: {handler: ecko}, next: end}", 51),
    ],
)
def test_an_unregistered_handler_is_refused(node, column):
    assert only(
        START + f"  a: {{}}\n{END}".replace("{}", node), "no handler 'ecko' is registered; did you mean 'echo'?"
    ) == (
        "a",
        4,
        column,
    )


@pytest.mark.requirement("W3")
def test_the_handler_of_a_fan_in_is_checked_too():
    nodes = "  start: {type: start, next: fan}\n" + FAN % "a" + "  a: {type: fan_in, handler: ecko, next: end}\n" + END

    assert only(nodes, "no handler 'ecko'")[0] == "a"


@pytest.mark.requirement("W3")
def test_an_unknown_queue_is_refused():
    nodes = START + "  a: {handler: echo, queue: container-task, next: end}\n" + END

    assert only(nodes, "there is no queue 'container-task'; did you mean 'container-tasks'?") == ("a", 4, 29)


@pytest.mark.requirement("W3")
def test_if_no_name_is_similar_the_existing_names_are_listed():
    nodes = START + "  a: {handler: zzz, queue: yyy, next: end}\n" + END

    problems = problems_in(nodes)

    (of_handler,) = [problem.message for problem in problems if "no handler" in problem.message]
    (of_queue,) = [problem.message for problem in problems if "no queue" in problem.message]
    assert of_handler == f"no handler 'zzz' is registered; known names are {', '.join(sorted(HANDLERS))}"
    assert of_queue == f"there is no queue 'yyy'; known names are {', '.join(sorted(QUEUES))}"


@pytest.mark.requirement("W3")
def test_a_long_list_of_existing_names_is_shortened():
    hint = or_known("zzz", [f"handler_{n:02}" for n in range(50)])

    assert hint.startswith("; known names are handler_00, handler_01")
    assert hint.endswith(", handler_29 and 20 more")


@pytest.mark.requirement("W4")
def test_a_maximum_delay_shorter_than_the_initial_delay_is_refused():
    nodes = START + "  a: {handler: echo, retry: {initial_delay_seconds: 5, max_delay_seconds: 1}, next: end}\n" + END

    assert only(nodes, "max_delay_seconds (1) is shorter than initial_delay_seconds (5)")[:2] == ("a", 4)


# --- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("{type: integer, default: '5'}", "the default of input 'n' must be an integer, not '5'"),
        ("{type: integer, default: true}", "must be an integer, not True"),
        ("{type: integer, default: 5.0}", "must be an integer, not 5.0"),
        ("{type: boolean, default: 1}", "must be true or false, not 1"),
        ("{type: array, default: {}}", "must be an array, not an object"),
        ("{type: string, default: null}", "must be a string, not null; leave it out instead"),
        ("{type: string, required: true, default: x}", "is required and has a default; choose one"),
    ],
)
def test_a_default_must_have_the_type_of_its_input(declared, words):
    nodes = START + "  a: {handler: echo, next: end}\n" + END

    assert only(nodes, words, head=f"inputs: {{n: {declared}}}\n")[1] == 2


# --- templates -------------------------------------------------------------------------------------------------------


def templated(template: str) -> str:
    return (
        START + f"  a:\n    handler: echo\n    params: {{x: [{template!r}]}}\n    next: b\n"
        f"  b: {{handler: echo, next: end}}\n" + END
    )


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 1 + }}", "is not valid: "),
        ("{{ inputs.cuont }}", "`inputs.cuont` is not an input of this workflow; did you mean 'count'?"),
        ("{{ inputs.other | default(1) }}", "`inputs.other` is not an input"),
        ("{{ nodes.strat.output }}", "`nodes.strat` does not exist; did you mean 'start'?"),
        ("{{ nodes.b.output.x }}", "`nodes.b` is not upstream of 'a'"),
        ("{{ nodes.a.output.x }}", "`nodes.a` is not upstream of 'a'"),
        ("{{ item }}", "`item` exists only in the task and the label of a fan_out"),
        ("{{ index + 1 }}", "`index` exists only in the task and the label of a fan_out"),
        ("{{ value }}", "`value` exists only in the conditions of branches"),
        ("{{ nodes.b-c.output }}", "is not a node's output"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template, words):
    assert only(templated(template), words, head="inputs: {count: {type: integer}}\n") == ("a", 7, 18)


@pytest.mark.requirement("W3")
@pytest.mark.parametrize("template", ["{{ inputs.count }}", "{{ nodes.start.output }}", "{{ job.job_id }}", "plain"])
def test_a_template_that_can_work_is_accepted(template):
    graph = a_graph(templated(template), head="inputs: {count: {type: integer}}\n")

    assert graph.work["a"].params == {"x": [template]}


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("batch", "template", "words"),
    [
        ("", "{{ items }}", "`items` does not exist here: without batch_size, children have `item`"),
        ("batch_size: 5, ", "{{ item }}", "`item` does not exist here: with batch_size, children have `items`"),
    ],
)
def test_children_have_item_and_with_batch_size_items(batch, template, words):
    nodes = (
        START + f"  a: {{type: fan_out, source: [1], {batch}task: {{handler: echo, params: {{x: '%s'}}}},"
        f" label: '%s', next: end}}\n" + END
    )

    problems = problems_in(nodes % (template, template))

    assert [problem.message for problem in problems] == [words, words]
    other = "{{ item }}" if not batch else "{{ items }}"
    a_workflow(nodes % (other, other + " {{ index }}"))


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    "node",
    [
        "{type: fan_out, source: '{{ item }}', task: {handler: echo}, next: end}",
        "{type: fan_out, source: ['{{ item }}'], task: {handler: echo}, next: end}",
        "{type: conditional, condition: '{{ item }} > 1', on_true: end}",
        "{type: conditional, condition_field: item, branches: [{default: true, next: end}]}",
        "{type: conditional, condition_field: job, branches: [{condition: '> {{ item }}', next: end}, "
        "{default: true, next: end}]}",
    ],
)
def test_every_kind_of_template_is_checked(node):
    assert only(START + f"  a: {node}\n" + END, "`item` exists only in")[0] == "a"


@pytest.mark.requirement("E26")
def test_the_templates_of_outputs_are_checked_and_may_read_every_node():
    nodes = START + "  a: {handler: echo, next: end}\n" + END

    assert only(nodes, "`nodes.b` does not exist", head="outputs: {x: '{{ nodes.b.output }}'}\n") == (None, 2, 14)
    a_workflow(nodes, head="outputs: {x: '{{ nodes.a.output }}'}\n")


@pytest.mark.requirement("W3")
def test_a_definition_without_a_file_is_checked_by_the_same_rules():
    workflow = a_workflow(START + "  a: {handler: echo, next: end}\n" + END)

    (problem,) = check(workflow, handlers={}, queues=())

    assert (problem.message, problem.node, problem.line) == ("no handler 'echo' is registered", "a", 0)
