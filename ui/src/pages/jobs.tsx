/** All jobs: filters, which are in the URL, states that are updated live, and actions on many jobs at once. */
import { batch, useSignal } from "@preact/signals";
import { Component } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, isConnectionLoss, type Schemas } from "../api/client";
import { CopyId, Elapsed, Empty, openRow, ProblemView, SearchBox, Skeleton, Time } from "../components/basics";
import { type BulkAction, BulkDialog } from "../components/bulk";
import { StateBadge, wordOf } from "../components/state";
import { VirtualList } from "../components/virtual";
import { useResource } from "../data";
import { duration, number, percent, plural } from "../format";
import { useTitle } from "../frame";
import { JobRows } from "../job_rows";
import { connection, onChanges } from "../live";
import { href, query, setQuery } from "../router";
import { may } from "../session";

type Job = Schemas["JobSummary"];

const STATES = ["pending", "running", "completed", "partial_success", "failed", "cancelled"] as const;
const PAGE = 100;
const ROW_HEIGHT = 36;
const MAX_SELECTED = 1000;

interface Filter {
  status: Schemas["JobStatus"][];
  workflow_id: string[];
  q: string;
  submitted_by: string[];
  since: string;
}

function filterOf(search: URLSearchParams): Filter {
  return {
    status: STATES.filter((state) => search.getAll("status").includes(state)),
    workflow_id: search.getAll("workflow"),
    q: search.get("q") ?? "",
    submitted_by: search.getAll("by"),
    since: search.get("since") ?? "",
  };
}

function asQuery(filter: Filter) {
  return {
    status: filter.status,
    workflow_id: filter.workflow_id,
    submitted_by: filter.submitted_by,
    q: filter.q || undefined,
    since: filter.since || undefined,
  };
}

export default function JobsPage() {
  useTitle("Jobs");
  const key = JSON.stringify(filterOf(query.value));
  // The same object until the filter changes: components that depend only on it are not drawn again with each page.
  const filter = useMemo(() => filterOf(query.peek()), [key]);
  const list = useJobList(key, filter);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [action, setAction] = useState<BulkAction | null>(null);
  useEffect(() => setSelected(new Set()), [key]);
  const select = useCallback(
    (id: string, isOn: boolean) =>
      setSelected((old) => {
        const next = new Set(old);
        if (isOn) next.add(id);
        else next.delete(id);
        return next;
      }),
    [],
  );
  const isFiltered = key !== JSON.stringify(filterOf(new URLSearchParams()));
  const canOperate = may("jobs:operate");
  return (
    <>
      <div class="page-head">
        <h1>Jobs</h1>
        <div class="actions">
          {may("jobs:submit") && (
            <a class="button primary" href={href("/workflows")}>
              Run a workflow
            </a>
          )}
        </div>
      </div>
      <Filters filter={filter} />
      {selected.size > 0 && (
        <div class="banner blue bulk-bar">
          <strong class="grow">{plural(selected.size, "job")} selected</strong>
          {(["cancel", "resume", "retry"] as const).map((name) => (
            <button key={name} type="button" class="button small" onClick={() => setAction(name)}>
              {name === "cancel" ? "Cancel" : name === "resume" ? "Resume" : "Retry"}…
            </button>
          ))}
          <button type="button" class="button quiet small" onClick={() => setSelected(new Set())}>
            Clear selection
          </button>
        </div>
      )}
      {list.problem && <ProblemView problem={list.problem} onRetry={list.reload} />}
      <div class="card job-list" hidden={list.jobs === null && list.problem !== null}>
        {list.jobs === null ? (
          <div class="body">
            <Skeleton lines={12} />
          </div>
        ) : list.jobs.length === 0 ? (
          <NoJobs isFiltered={isFiltered} />
        ) : (
          <VirtualList
            label="Jobs"
            count={list.jobs.length}
            rowHeight={ROW_HEIGHT}
            hasMore={list.hasMore}
            onNearEnd={list.more}
            head={<Head canSelect={canOperate} jobs={list.jobs} selected={selected} onSelect={setSelected} />}
            row={(index) => {
              const job = list.jobs?.[index];
              return (
                job && <Row job={job} isSelected={selected.has(job.job_id)} onSelect={canOperate ? select : null} />
              );
            }}
          />
        )}
      </div>
      {list.jobs && list.jobs.length > 0 && (
        <p class="muted">
          {number(list.jobs.length)} shown{list.hasMore ? "; more are loaded as you scroll" : ""}.
        </p>
      )}
      {action && (
        <BulkDialog
          action={action}
          jobIds={[...selected]}
          onClose={() => setAction(null)}
          onDone={() => {
            setSelected(new Set());
            list.reload();
          }}
        />
      )}
    </>
  );
}

function Filters({ filter }: { filter: Filter }) {
  const counts = useResource(
    `counts:${JSON.stringify({ ...filter, status: [] })}`,
    (signal) => api.get("/api/v1/jobs/counts", { query: { ...asQuery({ ...filter, status: [] }) }, signal }),
    { isAffectedBy: (change) => change.kind === "job", atMostEveryMs: 2500 },
  );
  const workflows = useResource(
    "workflow-names",
    (signal) => api.get("/api/v1/workflows", { query: { limit: 200 }, signal }),
    {
      enabled: may("workflows:read"),
    },
  );
  const toggle = (state: Schemas["JobStatus"]) =>
    setQuery({
      status: filter.status.includes(state)
        ? filter.status.filter((each) => each !== state)
        : [...filter.status, state],
    });
  return (
    <div class="row wrap filters">
      <div class="search">
        <SearchBox
          label="Search in ids, workflows, inputs and errors"
          value={filter.q}
          onChange={(value) => setQuery({ q: value || null })}
        />
      </div>
      <select
        class="input narrow"
        aria-label="Workflow"
        value={filter.workflow_id[0] ?? ""}
        onChange={(event) => setQuery({ workflow: event.currentTarget.value || null })}
      >
        <option value="">All workflows</option>
        {(workflows.data?.items ?? []).map((workflow) => (
          <option key={workflow.workflow_id} value={workflow.workflow_id}>
            {workflow.workflow_id}
          </option>
        ))}
      </select>
      <select
        class="input narrow"
        aria-label="Created"
        value={filter.since}
        onChange={(event) => setQuery({ since: event.currentTarget.value || null })}
      >
        <option value="">Any time</option>
        <option value="1h">Last hour</option>
        <option value="24h">Last day</option>
        <option value="7d">Last week</option>
      </select>
      {query.value.size > 0 && (
        <button
          type="button"
          class="button quiet small"
          onClick={() => setQuery({ status: null, workflow: null, q: null, by: null, since: null })}
        >
          Clear filters
        </button>
      )}
      <div class="chips" role="group" aria-label="State">
        {STATES.map((state) => {
          const count = counts.data?.by_status[state];
          return (
            <button
              key={state}
              type="button"
              class="chip"
              aria-pressed={filter.status.includes(state)}
              onClick={() => toggle(state)}
            >
              <StateBadge state={state} plain word={wordOf(state)} />
              {count && (
                <span class="muted numeric">
                  {number(count.count)}
                  {count.is_exact ? "" : "+"}
                </span>
              )}
            </button>
          );
        })}
      </div>
    </div>
  );
}

function Head(props: {
  canSelect: boolean;
  jobs: Job[];
  selected: ReadonlySet<string>;
  onSelect: (ids: ReadonlySet<string>) => void;
}) {
  const isAll = useMemo(
    () => props.selected.size > 0 && props.jobs.slice(0, MAX_SELECTED).every((job) => props.selected.has(job.job_id)),
    [props.jobs, props.selected],
  );
  return (
    <div role="row" aria-rowindex={1} class="job-row head">
      <span role="columnheader">
        {props.canSelect && (
          <input
            type="checkbox"
            aria-label="Select all jobs that are shown"
            checked={isAll}
            onChange={() =>
              props.onSelect(new Set(isAll ? [] : props.jobs.slice(0, MAX_SELECTED).map((job) => job.job_id)))
            }
          />
        )}
      </span>
      <span role="columnheader">State</span>
      <span role="columnheader">Workflow</span>
      <span role="columnheader">Job</span>
      <span role="columnheader">Progress or error</span>
      <span role="columnheader">Submitted by</span>
      <span role="columnheader">Created</span>
      <span role="columnheader" class="numeric">
        Time
      </span>
    </div>
  );
}

interface RowProps {
  job: Job;
  isSelected: boolean;
  onSelect: ((id: string, isOn: boolean) => void) | null;
}

/** A row that is drawn again only if its job or its checkbox has changed. */
class Row extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps): boolean {
    const { job, isSelected, onSelect } = this.props;
    return next.job !== job || next.isSelected !== isSelected || next.onSelect !== onSelect;
  }

  override render(props: RowProps) {
    return <Cells {...props} />;
  }
}

function Cells(props: RowProps) {
  const { job } = props;
  const to = `/jobs/${job.job_id}`;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the link in the row does the same with the keyboard
    <div role="presentation" class={`job-row${props.isSelected ? " selected" : ""}`} onClick={openRow(to)}>
      <span role="cell">
        {props.onSelect && (
          <input
            type="checkbox"
            aria-label={`Select job ${job.job_id}`}
            checked={props.isSelected}
            onChange={(event) => props.onSelect?.(job.job_id, event.currentTarget.checked)}
          />
        )}
      </span>
      <span role="cell">
        <StateBadge state={job.status} />
      </span>
      <span role="cell" class="ellipsis">
        <a href={href(to)}>{job.workflow_id}</a>
      </span>
      <span role="cell">
        <CopyId id={job.job_id} noun="Job id" plain />
      </span>
      <span role="cell" class="ellipsis" title={job.error_message ?? undefined}>
        <Progress job={job} />
      </span>
      <span role="cell" class="ellipsis muted">
        {job.submitted_by ?? "–"}
      </span>
      <span role="cell" class="muted">
        <Time at={job.created_at} />
      </span>
      <span role="cell" class="numeric nowrap">
        <Elapsed from={job.started_at ?? null} to={job.completed_at ?? null} />
      </span>
    </div>
  );
}

function Progress({ job }: { job: Job }) {
  if (job.error_message) return <span class="tone-red error-text">{job.error_message}</span>;
  const progress = job.progress;
  if (job.status === "pending") return <span class="muted">waiting for an orchestrator</span>;
  if (job.status !== "running" || !progress || progress.fraction === null || progress.fraction === undefined)
    return null;
  return (
    <span class="row">
      <progress max={1} value={progress.fraction} aria-label="Progress" />
      <span class="numeric nowrap">{percent(progress.fraction)}</span>
      {job.eta_seconds !== null && job.eta_seconds !== undefined && (
        <span class="muted nowrap">{duration(job.eta_seconds)} left</span>
      )}
    </span>
  );
}

function NoJobs({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered)
    return (
      <Empty title="No job matches these filters">
        <button
          type="button"
          class="button"
          onClick={() => setQuery({ status: null, workflow: null, q: null, by: null, since: null })}
        >
          Show all jobs
        </button>
      </Empty>
    );
  return (
    <Empty title="There are no jobs yet">
      <p>
        <a href={href("/submit")}>Submit a file</a>, <a href={href("/workflows")}>run a workflow</a>, or run
      </p>
      <code>dagmaster submit echo_test -p message=hi</code>
    </Empty>
  );
}

interface JobList {
  jobs: Job[] | null;
  hasMore: boolean;
  problem: Error | null;
  more: () => void;
  reload: () => void;
}

/** The jobs that match a filter, newest first, page by page, with the changes that the stream reports. */
function useJobList(key: string, filter: Filter): JobList {
  const shown = useSignal<Job[] | null>(null);
  const problem = useSignal<Error | null>(null);
  const next = useSignal<string | null>(null);
  const rows = useRef(new JobRows<Job>([]));
  const isBusy = useRef(false);
  const generation = useRef(0);

  const load = useCallback(
    async (mode: "first" | "more" | "new" | "all"): Promise<void> => {
      if (mode === "more" && (isBusy.current || !next.peek())) return;
      if ((mode === "new" || mode === "all") && rows.current.items.length === 0) return load("first");
      const own = mode === "first" ? ++generation.current : generation.current;
      isBusy.current = true;
      const loadPage = (after: string | undefined) =>
        api.get("/api/v1/jobs", { query: { ...asQuery(filter), limit: PAGE, after } });
      try {
        if (mode === "new" || mode === "all") {
          const minPages = mode === "all" ? Math.ceil(rows.current.items.length / PAGE) : 1;
          const isComplete = await rows.current.catchUp(loadPage, minPages);
          if (own !== generation.current) return;
          if (!isComplete) return await load("first");
        } else {
          const page = await loadPage(mode === "more" ? (next.peek() ?? undefined) : undefined);
          if (own !== generation.current) return;
          if (mode === "first") rows.current = new JobRows<Job>(filter.status);
          rows.current.add(page.items);
          next.value = page.next ?? null;
        }
        batch(() => {
          shown.value = rows.current.items;
          problem.value = null;
        });
      } catch (error) {
        if (own === generation.current) problem.value = error as Error;
      } finally {
        if (own === generation.current) isBusy.current = false;
      }
    },
    [key],
  );

  useEffect(() => {
    shown.value = null;
    load("first");
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isOutdated = false;
    const soon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        if (isBusy.current) return soon();
        load(isOutdated ? "all" : "new");
        isOutdated = false;
      }, 1200);
    };
    const stop = onChanges((changes) => {
      const hasUnknown = rows.current.change(changes);
      if (shown.peek() !== null) shown.value = rows.current.items;
      isOutdated ||= changes.some((change) => change.kind === "job" && change.id === null);
      if (hasUnknown) soon();
    });
    const unsubscribe = connection.subscribe((state) => {
      if (state === "open" && isConnectionLoss(problem.peek())) soon();
    });
    return () => {
      stop();
      unsubscribe();
      clearTimeout(timer);
    };
  }, [key]);

  return {
    jobs: shown.value,
    hasMore: next.value !== null,
    problem: problem.value,
    more: () => void load("more"),
    reload: () => void load("first"),
  };
}
