/** All workflows that can be run, and an editor that checks and runs a workflow of the user. */
import { useState } from "preact/hooks";
import { api, csrfHeaders, fetchResponse, problemOf, type Schemas } from "../api/client";
import { Banner, Card, Empty, Loaded, ProblemView, SearchBox, Tabs } from "../components/basics";
import { toast } from "../components/toasts";
import { useResource } from "../data";
import { duration, percent, plural } from "../format";
import { useTitle } from "../frame";
import { href, navigate, query, setQuery } from "../router";
import { may } from "../session";

export default function WorkflowsPage() {
  useTitle("Workflows");
  return (
    <>
      <div class="page-head">
        <h1>Workflows</h1>
      </div>
      <Tabs
        label="Workflows"
        tabs={[
          { id: "gallery", label: "Gallery", content: () => <Gallery /> },
          ...(may("workflows:write") || may("workflows:read")
            ? [{ id: "own", label: "Your own", content: () => <Editor /> }]
            : []),
        ]}
      />
    </>
  );
}

function Gallery() {
  const q = query.value.get("q") ?? "";
  const workflows = useResource("workflows", (signal) =>
    api.get("/api/v1/workflows", { query: { limit: 200 }, signal }),
  );
  const stats = useResource("stats", (signal) => api.get("/api/v1/stats", { signal }), {
    enabled: may("platform:read"),
  });
  const recent = new Map((stats.data?.recent ?? []).map((each) => [each.workflow_id, each]));
  return (
    <div class="stack">
      <div class="filters search">
        <SearchBox label="Search workflows" value={q} onChange={(value) => setQuery({ q: value || null })} />
      </div>
      <Loaded resource={workflows}>
        {(data) => {
          const searched = q.toLowerCase();
          const items = data.items.filter((each) =>
            `${each.workflow_id} ${each.name} ${each.description}`.toLowerCase().includes(searched),
          );
          return (
            <>
              {(data.refused ?? []).map((file) => (
                <Banner key={file.file} tone="amber" title={`${file.file} is not valid and was left out`}>
                  <ul class="plain">
                    {file.problems.map((problem, place) => (
                      <li key={place}>
                        {problem.line ? `Line ${problem.line}: ` : ""}
                        {problem.message}
                      </li>
                    ))}
                  </ul>
                </Banner>
              ))}
              {items.length === 0 && <Empty title="No workflow matches this search" />}
              <div class="cards">
                {items.map((workflow) => {
                  const runs = recent.get(workflow.workflow_id);
                  return (
                    <a key={workflow.workflow_id} class="card tile" href={href(`/workflows/${workflow.workflow_id}`)}>
                      <div class="body stack tight">
                        <strong>{workflow.name || workflow.workflow_id}</strong>
                        <code class="muted">{workflow.workflow_id}</code>
                        <p class="muted clamp">{workflow.description || "No description"}</p>
                        <span class="muted small">
                          version {workflow.version} · {plural(workflow.nodes, "node")}
                          {runs && runs.jobs > 0 && (
                            <>
                              {" "}
                              · {plural(runs.jobs, "recent run")},{" "}
                              {percent(runs.completed / Math.max(1, runs.completed + runs.not_completed))} succeeded
                              {runs.p50_seconds ? `, ${duration(runs.p50_seconds)}` : ""}
                            </>
                          )}
                        </span>
                      </div>
                    </a>
                  );
                })}
              </div>
            </>
          );
        }}
      </Loaded>
    </div>
  );
}

const SAMPLE = `workflow_id: my_first
inputs:
  message:
    type: string
    default: hello
nodes:
  start:
    type: start
    next: say
  say:
    handler: echo
    params:
      message: "{{ inputs.message }}"
    next: end
  end:
    type: end
`;

type Check = Schemas["WorkflowCheck"];

function Editor() {
  const [text, setText] = useState(SAMPLE);
  const [check, setCheck] = useState<Check | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  const validate = async () => {
    setBusy(true);
    setProblem(null);
    try {
      setCheck(await validateText(text));
    } catch (error) {
      setProblem(error as Error);
    } finally {
      setBusy(false);
    }
  };
  const run = async () => {
    setBusy(true);
    setProblem(null);
    try {
      const result = await validateText(text);
      setCheck(result);
      if (!result.is_valid || !result.workflow_id) return;
      const job = await api.post("/api/v1/jobs", { body: { workflow_id: result.workflow_id, definition: text } });
      toast("green", "The job was started");
      navigate(`/jobs/${job.job_id}`);
    } catch (error) {
      setProblem(error as Error);
    } finally {
      setBusy(false);
    }
  };
  const lines = text.split("\n").length;
  const marked = new Set((check?.problems ?? []).map((each) => each.line));
  return (
    <div class="columns even">
      <Card
        title="YAML"
        flush
        actions={
          <>
            <button type="button" class="button small" disabled={isBusy} onClick={validate}>
              Check
            </button>
            {may("workflows:write") && (
              <button type="button" class="button primary small" disabled={isBusy} onClick={run}>
                Run
              </button>
            )}
          </>
        }
      >
        <div class="editor">
          <div class="gutter" aria-hidden="true">
            {Array.from({ length: lines }, (_, place) => (
              <div key={place} class={marked.has(place + 1) ? "bad" : ""}>
                {place + 1}
              </div>
            ))}
          </div>
          <textarea
            class="mono"
            aria-label="Workflow as YAML"
            spellcheck={false}
            rows={Math.max(20, lines + 1)}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </div>
      </Card>
      <div class="stack">
        {problem && <ProblemView problem={problem} />}
        {check?.is_valid && (
          <Banner tone="green" title={`${check.workflow_id} is valid: ${plural(check.nodes ?? 0, "node")}`} />
        )}
        {check && !check.is_valid && (
          <Banner tone="red" title={plural(check.problems.length, "problem")}>
            <ul class="plain">
              {check.problems.map((each, place) => (
                <li key={place}>
                  {each.line ? `Line ${each.line}${each.column ? `, column ${each.column}` : ""}: ` : ""}
                  {each.message}
                </li>
              ))}
            </ul>
          </Banner>
        )}
        {!check && !problem && <p class="muted">Check the workflow to see its errors with their lines, or run it.</p>}
      </div>
    </div>
  );
}

async function validateText(text: string): Promise<Check> {
  const response = await fetchResponse("/api/v1/workflows/validate", {
    method: "POST",
    headers: { "Content-Type": "application/yaml", Accept: "application/json", ...csrfHeaders() },
    body: text,
  });
  if (!response.ok) throw await problemOf(response);
  return (await response.json()) as Check;
}
