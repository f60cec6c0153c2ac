"""Loading workflows from files and folders: all mistakes are reported together."""

import pytest

from dagmaster.errors import InvalidRequest, InvalidWorkflow
from dagmaster.workflows.load import WorkflowLimits, read, read_all, read_folder
from dagmaster.workflows.model import TaskNode, Workflow

from .builders import HANDLERS, QUEUES, a_workflow, problems_in, problems_of, text_of, the_problem

SMALL = "  start: {type: start, next: work}\n  work: {handler: echo, next: end}\n  end: {type: end}\n"


@pytest.mark.requirement("W2")
def test_a_node_with_a_handler_and_no_type_is_a_task():
    workflow = a_workflow(SMALL)

    assert isinstance(workflow.nodes["work"], TaskNode)


@pytest.mark.requirement("W3")
def test_next_is_a_name_or_a_list():
    workflow = a_workflow(
        "  start: {type: start, next: [a, b]}\n  a: {handler: echo, next: end}\n"
        "  b: {handler: echo, next: [end]}\n  end: {type: end}\n"
    )

    assert workflow.nodes["start"].next == ("a", "b")
    assert workflow.nodes["a"].next == workflow.nodes["b"].next == ("end",)


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    ("written", "version"),
    [("1.10", "1.10"), ("2", "2"), ("1.0", "1.0"), ("'3'", "3"), ("1.2.3", "1.2.3"), ("1e2", "1e2")],
)
def test_a_version_keeps_its_text(written, version):
    assert a_workflow(SMALL, head=f"version: {written}\n").version == version


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("written", "tolerated"), [("3", 3), ("1", 1), ("0.1", 0.1), ("10%", 0.1), ("100%", 1.0), ("1.0", 1.0), ("0", 0)]
)
def test_tolerate_is_a_number_or_a_fraction(written, tolerated):
    workflow = a_workflow(
        "  start: {type: start, next: fan}\n"
        f"  fan: {{type: fan_out, source: [1], tolerate: {written}, task: {{handler: echo}}, next: end}}\n"
        "  end: {type: end}\n"
    )

    assert workflow.nodes["fan"].tolerate == tolerated
    assert type(workflow.nodes["fan"].tolerate) is type(tolerated)


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("written", ["1.5", "110%", "-1", "some", "x%", "true"])
def test_an_invalid_tolerate_is_reported_once(written):
    problems = problems_in(
        f"  start: {{type: start, next: fan}}\n  fan: {{type: fan_out, source: [1], tolerate: {written}, "
        "task: {handler: echo}, next: end}\n  end: {type: end}\n"
    )

    assert the_problem(problems, "`tolerate` must be a number of children, or a share").line == 4
    assert len(problems) == 1


@pytest.mark.requirement("W9")
def test_a_stored_definition_is_the_same_workflow_with_the_same_hash():
    workflow = a_workflow(SMALL, head="version: 1.10\ninputs: {n: {type: integer, default: 3}}\n")

    again = Workflow.model_validate(workflow.body())

    assert again == workflow
    assert again.content_hash() == workflow.content_hash()


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    ("node", "words", "at"),
    [
        ("{handlr: echo, type: task, next: end}", "unknown field 'handlr'; did you mean 'handler'?", "handlr"),
        ("{type: task, next: end}", "the field 'handler' is missing", "work"),
        ("{next: end}", "needs a `type`", "work"),
        ("{type: tsk, next: end}", "unknown type 'tsk'; did you mean 'task'?", "work"),
        ("{handler: echo, importance: critcal, next: end}", "did you mean 'critical'?", "critcal"),
        ("{handler: echo, timeout_seconds: '60', next: end}", "`timeout_seconds` must be a valid number", "'60'"),
        ("{handler: echo, timeout_seconds: 0, next: end}", "`timeout_seconds` must be greater than 0", "0"),
        ("{handler: echo, retry: {max_attempts: 1.5}, next: end}", "`max_attempts` must be", "1.5"),
        ("{handler: echo, retry: {backof: fixed}, next: end}", "'backof'; did you mean 'backoff'?", "backof"),
        ("{handler: echo, retry: {backoff: linear}, next: end}", "must be 'fixed' or 'exponential'", "linear"),
        ("{handler: 5, next: end}", "`handler` must be a valid string, not 5; put it in quotes", "5"),
        ("{handler: echo, params: [1], next: end}", "`params` must be", "[1]"),
        ("{handler: echo, next: [end, 5]}", "`next` must be a valid string", "5"),
        ("{handler: echo, next: 'no name'}", "'no name' is not a name", "'no name'"),
        ("{handler: echo, depends_on: {all: start}, next: end}", "unknown field 'all'", "all"),
        ("5", "needs a `type`", "work"),
    ],
)
def test_a_wrong_field_of_a_node_is_reported_with_node_line_and_column(node, words, at):
    line = f"  work: {node}"
    problems = problems_in(f"  start: {{type: start, next: work}}\n{line}\n  end: {{type: end}}\n")

    problem = the_problem(problems, words)

    assert (problem.node, problem.line, problem.column) == ("work", 4, line.index(at) + 1)
    assert len(problems) == 1, "a wrong field must not cause problems of other nodes"


@pytest.mark.requirement("W3")
def test_an_invalid_workflow_id_is_reported_with_the_rule():
    nodes = "nodes: {start: {type: start, next: end}, end: {type: end}}"

    with pytest.raises(InvalidWorkflow, match=r"letters, digits, _, \. or -"):
        read(f"workflow_id: no name\n{nodes}", "x.yaml")

    assert read(f"workflow_id: tiles.v2\n{nodes}", "x.yaml").workflow_id == "tiles.v2"


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("timeout: 5\n", "unknown field 'timeout'; did you mean 'timeout_seconds'?"),
        ("name: 5\n", "`name` must be a valid string"),
        ("version: [1]\n", "`version` must be a number or a text"),
        ("inputs: {a: {type: strin}}\n", "did you mean 'string'?"),
        ("inputs: {a: {typ: string}}\n", "unknown field 'typ'; did you mean 'type'?"),
        ("inputs: {a: 5}\n", "must be"),
        ("inputs: 5\n", "`inputs` must be"),
    ],
)
def test_a_wrong_field_of_the_workflow_is_reported_with_its_line(head, words):
    problems = problems_in(SMALL, head=head)

    assert the_problem(problems, words).line == 2
    assert len(problems) == 1


@pytest.mark.requirement("W1")
def test_a_workflow_needs_an_id_and_nodes():
    problems = problems_of("name: x\n")

    the_problem(problems, "the field 'workflow_id' is missing")
    the_problem(problems, "the field 'nodes' is missing")


@pytest.mark.requirement("W3")
def test_every_mistake_is_reported_at_once_in_order_with_line_column_and_node():
    text = """\
workflow_id: test
timeout: 5
inputs:
  count: {type: integer, default: many}
nodes:
  start: {type: start, next: [first, nowhere]}
  first:
    handler: ecko
    queue: slow
    params:
      a: "{{ inputs.cuont }}"
      b: ["{{ 1 + }}"]
      c: "{{ nodes.other.output }}"
    retry: {max_attempts: "3"}
    next: choose
  choose: {type: conditional, condition: "{{ inputs.count }} > 1"}
  end: {type: end}
  end: {type: end}
"""
    places = [(p.line, p.column, p.node) for p in problems_of(text)]

    assert places == [
        (2, 1, None),
        (4, 35, None),
        (6, 38, "start"),
        (8, 14, "first"),
        (9, 12, "first"),
        (11, 10, "first"),
        (12, 11, "first"),
        (13, 10, "first"),
        (14, 27, "first"),
        (16, 31, "choose"),
        (17, 3, "end"),
        (18, 3, None),
    ]


@pytest.mark.requirement("W3")
def test_a_refusal_is_formatted_like_a_compiler_error():
    with pytest.raises(InvalidWorkflow) as refusal:
        read(text_of(SMALL.replace("echo", "ecko")), "flows/x.yaml", handlers=HANDLERS, queues=QUEUES)

    assert str(refusal.value) == (
        "flows/x.yaml:4:19: node 'work': no handler 'ecko' is registered; did you mean 'echo'?"
    )


@pytest.mark.requirement("W3")
def test_handlers_and_queues_are_not_checked_if_none_are_given():
    text = text_of(SMALL.replace("handler: echo", "handler: anything, queue: any"))

    assert read(text, "x.yaml").nodes["work"].handler == "anything"


@pytest.mark.requirement("W11")
def test_limits_can_be_set():
    the_problem(problems_in(SMALL, limits=WorkflowLimits(max_nodes=2)), "3 nodes; at most 2 are allowed")
    the_problem(problems_in(SMALL, limits=WorkflowLimits(max_bytes=10)), "at most 10 are allowed")
    the_problem(problems_in(SMALL, limits=WorkflowLimits(max_depth=1)), "nested deeper than 1")
    the_problem(problems_in(SMALL, limits=WorkflowLimits(max_yaml_nodes=5)), "more than 5 values")
    big = SMALL.replace("handler: echo", "handler: echo, params: {a: aaaaaaaaaaaaaaaaaaaa}")
    assert (
        the_problem(problems_in(big, limits=WorkflowLimits(max_params_bytes=20)), "params of 28 bytes").node == "work"
    )


@pytest.mark.requirement("W3")
def test_one_bad_file_does_not_stop_the_others(tmp_path):
    (tmp_path / "a.yaml").write_text(text_of(SMALL))
    (tmp_path / "b.yaml").write_text("nodes: [")
    (tmp_path / "c.yml").write_text(text_of(SMALL).replace("workflow_id: test", "workflow_id: other"))
    (tmp_path / "d.txt").write_text("not looked at")

    loaded = read_folder(tmp_path, handlers=HANDLERS, queues=QUEUES)

    assert set(loaded.workflows) == {"test", "other"}
    assert [error.file for error in loaded.refused] == [str(tmp_path / "b.yaml")]
    assert loaded.files["other"] == str(tmp_path / "c.yml")


@pytest.mark.requirement("W3")
def test_a_second_file_with_the_same_id_is_refused_and_both_files_are_named(tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(text_of(SMALL))

    loaded = read_folder(tmp_path)

    (refusal,) = loaded.refused
    assert loaded.files == {"test": str(tmp_path / "a.yaml")}
    assert refusal.file == str(tmp_path / "b.yaml")
    assert str(tmp_path / "a.yaml") in str(refusal)


@pytest.mark.requirement("W3")
def test_a_missing_file_or_folder_is_reported(tmp_path):
    assert "cannot be read" in str(read_all([tmp_path / "absent.yaml"]).refused[0])
    with pytest.raises(InvalidRequest, match="there is no folder"):
        read_folder(tmp_path / "absent")


@pytest.mark.requirement("W11")
def test_a_huge_file_is_not_read_into_memory(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(2**33)

    assert "at most 262,144" in str(read_all([path]).refused[0])
