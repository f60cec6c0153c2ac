/** Search: jump to a job, an asset or a workflow, or open a page. */
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { api } from "./api/client";
import { Dialog } from "./components/basics";
import { Icon, type IconName } from "./components/icons";
import { StateBadge } from "./components/state";
import { useResource } from "./data";
import { shortId } from "./format";
import { navigate } from "./router";
import { may } from "./session";

export const isPaletteOpen = signal(false);

interface Choice {
  id: string;
  icon: IconName;
  label: string;
  detail?: string;
  state?: string;
  to: string;
}

const PAGES: (Choice & { permission: string })[] = [
  { id: "page-jobs", icon: "jobs", label: "Jobs", to: "/jobs", permission: "jobs:read" },
  { id: "page-failed", icon: "jobs", label: "Failed jobs", to: "/jobs?status=failed", permission: "jobs:read" },
  { id: "page-running", icon: "jobs", label: "Running jobs", to: "/jobs?status=running", permission: "jobs:read" },
  { id: "page-assets", icon: "assets", label: "Assets", to: "/assets", permission: "assets:read" },
  { id: "page-review", icon: "review", label: "Review", to: "/review", permission: "assets:review" },
  { id: "page-submit", icon: "submit", label: "Submit data", to: "/submit", permission: "assets:submit" },
  { id: "page-workflows", icon: "workflows", label: "Workflows", to: "/workflows", permission: "workflows:read" },
  { id: "page-system", icon: "system", label: "System", to: "/system", permission: "jobs:read" },
];

export function startPalette(): void {
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      isPaletteOpen.value = !isPaletteOpen.value;
    }
  });
}

export function Palette() {
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const results = useResource(`palette:${text}`, (signal) => search(text, signal));
  const searched = text.trim().toLowerCase();
  const pages = PAGES.filter((page) => may(page.permission) && page.label.toLowerCase().includes(searched));
  const choices = [...pages, ...(results.data ?? [])];
  useEffect(() => setPlace(0), [text]);
  const chosen = choices[place]?.id;
  useEffect(() => {
    if (chosen) document.getElementById(chosen)?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  const close = () => {
    isPaletteOpen.value = false;
  };
  const open = (choice: Choice | undefined) => {
    if (!choice) return;
    close();
    navigate(choice.to);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setPlace(Math.min(place + 1, choices.length - 1));
    else if (event.key === "ArrowUp") setPlace(Math.max(place - 1, 0));
    else if (event.key === "Enter") open(choices[place]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Search" onClose={close}>
      <input
        class="input"
        type="text"
        role="combobox"
        aria-expanded={true}
        aria-autocomplete="list"
        aria-controls="palette-list"
        aria-activedescendant={chosen}
        aria-label="Job id, asset, workflow or page"
        placeholder="Job id, asset, workflow or page"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKey}
      />
      <div id="palette-list" class="palette-list" role="listbox" aria-label="Results">
        {choices.map((choice, index) => (
          <div
            key={choice.id}
            id={choice.id}
            role="option"
            tabIndex={-1}
            aria-selected={index === place}
            onClick={() => open(choice)}
            onKeyDown={() => {}}
            onMouseMove={() => setPlace(index)}
          >
            <Icon name={choice.icon} />
            <span class="grow ellipsis">{choice.label}</span>
            {choice.state && <StateBadge state={choice.state} plain />}
            {choice.detail && <span class="muted mono nowrap">{choice.detail}</span>}
          </div>
        ))}
        {choices.length === 0 && !results.isLoading && <p class="muted">No results.</p>}
      </div>
    </Dialog>
  );
}

async function search(text: string, signal: AbortSignal): Promise<Choice[]> {
  const words = text.trim();
  if (words.length < 2) return [];
  await new Promise((resolve) => setTimeout(resolve, 150));
  if (signal.aborted) return [];
  const [jobs, assets, workflows] = await Promise.allSettled([
    may("jobs:read") ? api.get("/api/v1/jobs", { query: { q: words, limit: 6 }, signal }) : null,
    may("assets:read") ? api.get("/api/v1/assets", { query: { q: words, limit: 6 }, signal }) : null,
    may("workflows:read") ? api.get("/api/v1/workflows", { query: { limit: 100 }, signal }) : null,
  ]);
  const choices: Choice[] = [];
  for (const asset of settled(assets)?.items ?? [])
    choices.push({
      id: `asset-${asset.asset_id}`,
      icon: "assets",
      label: asset.title ?? asset.dataset_id,
      detail: asset.platform_id,
      to: `/assets/${asset.asset_id}`,
    });
  for (const workflow of settled(workflows)?.items ?? [])
    if (`${workflow.workflow_id} ${workflow.name}`.toLowerCase().includes(words.toLowerCase()))
      choices.push({
        id: `workflow-${workflow.workflow_id}`,
        icon: "workflows",
        label: workflow.name || workflow.workflow_id,
        detail: workflow.workflow_id,
        to: `/workflows/${workflow.workflow_id}`,
      });
  for (const job of settled(jobs)?.items ?? [])
    choices.push({
      id: `job-${job.job_id}`,
      icon: "jobs",
      label: job.workflow_id,
      state: job.status,
      detail: shortId(job.job_id),
      to: `/jobs/${job.job_id}`,
    });
  return choices;
}

function settled<T>(result: PromiseSettledResult<T>): T | null {
  return result.status === "fulfilled" ? result.value : null;
}
