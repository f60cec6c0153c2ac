/**
 * One stream of changes per tab, shared by all views.
 *
 * Changes are collected and handed out once per animation frame. A lost connection is shown, and tried again with
 * growing pauses; the server then sends what was missed, or `resync`, after which all views load again.
 */
import { signal } from "@preact/signals";
import { urlOf } from "./api/client";

export type ConnectionState = "connecting" | "open" | "lost";
export type Kind = "job" | "asset" | "queue" | "instance";

export interface Change {
  kind: Kind;
  /** The id of what changed; null stands for anything of this kind. */
  id: string | null;
  data: Record<string, unknown>;
}

/** Whether a change is of this job or asset, or of all of them. */
export function concerns(change: Change, kind: Kind, id: string): boolean {
  return change.kind === kind && (change.id === id || change.id === null);
}

type Listener = (changes: Change[]) => void;

export const connection = signal<ConnectionState>("connecting");
export const lostSince = signal<number | null>(null);
/** How often the connection has failed since it was open. */
export const failures = signal(0);

const listeners = new Set<Listener>();
let pending: Change[] = [];
let isScheduled = false;
let source: EventSource | null = null;
let lastId: string | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;

export function onChanges(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function announce(change: Change): void {
  pending.push(change);
  if (isScheduled) return;
  isScheduled = true;
  const flush = () => {
    isScheduled = false;
    const changes = pending;
    pending = [];
    for (const listener of [...listeners]) listener(changes);
  };
  // Hidden tabs get no animation frames.
  if (document.hidden) setTimeout(flush, 250);
  else requestAnimationFrame(flush);
}

function everything(): void {
  for (const kind of ["job", "asset", "queue", "instance"] as const) announce({ kind, id: null, data: {} });
}

export function pauseSeconds(attempt: number): number {
  return Math.min(30, 2 ** Math.min(attempt, 6) / 2);
}

export function connect(): void {
  close();
  const isWithoutCursor = lastId === null;
  source = new EventSource(urlOf("/api/v1/stream", {}, { after: lastId }));
  source.onopen = () => {
    connection.value = "open";
    lostSince.value = null;
    failures.value = 0;
  };
  source.onerror = () => {
    connection.value = "lost";
    lostSince.value ??= Date.now();
    source?.close();
    source = null;
    failures.value += 1;
    timer = setTimeout(connect, pauseSeconds(failures.value) * 1000);
  };
  const take = (name: string, handle: (data: Record<string, unknown>) => void) => {
    source?.addEventListener(name, (event) => {
      const message = event as MessageEvent<string>;
      if (message.lastEventId) lastId = message.lastEventId;
      handle(JSON.parse(message.data) as Record<string, unknown>);
    });
  };
  const each = (kind: Kind, list: unknown, key: string) => {
    for (const item of (list as Record<string, unknown>[] | undefined) ?? [])
      announce({ kind, id: item[key] as string, data: item });
  };
  // Without a cursor the stream starts at `hello`: what views loaded before may have changed in between.
  take("hello", () => {
    if (isWithoutCursor) everything();
  });
  take("jobs", (data) => each("job", data.jobs, "job_id"));
  take("assets", (data) => each("asset", data.assets, "asset_id"));
  take("queues", () => announce({ kind: "queue", id: null, data: {} }));
  take("instances", () => announce({ kind: "instance", id: null, data: {} }));
  take("resync", everything);
}

/** End the stream. What was lost before does not concern the next one, of another session. */
export function disconnect(): void {
  close();
  connection.value = "connecting";
  lostSince.value = null;
  failures.value = 0;
}

function close(): void {
  clearTimeout(timer);
  source?.close();
  source = null;
}

export function retryNow(): void {
  failures.value = 0;
  connect();
}
