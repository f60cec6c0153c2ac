/**
 * One stream of changes per tab, shared by all views.
 *
 * Changes are collected and passed to the views once per animation frame. A lost connection is shown, and opened again
 * after increasing delays. The server then sends the missed changes, or `resync`, after which all views load again.
 */
import { signal } from "@preact/signals";
import { urlOf } from "./api/client";

export type ConnectionState = "connecting" | "open" | "lost";
export type Kind = "job" | "asset" | "queue" | "instance";

export interface Change {
  kind: Kind;
  /** The id of the object that changed; null if any object of this kind may have changed. */
  id: string | null;
  data: Record<string, unknown>;
}

/** Whether a change is about the object with this id, or may be about any object of its kind. */
export function concerns(change: Change, kind: Kind, id: string): boolean {
  return change.kind === kind && (change.id === id || change.id === null);
}

type Listener = (changes: Change[]) => void;

export const connection = signal<ConnectionState>("connecting");
export const lostSince = signal<number | null>(null);
/** How often the connection has failed since it was last open. */
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

function announceAll(): void {
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
  const onEvent = (name: string, handle: (data: Record<string, unknown>) => void) => {
    source?.addEventListener(name, (event) => {
      const message = event as MessageEvent<string>;
      if (message.lastEventId) lastId = message.lastEventId;
      handle(JSON.parse(message.data) as Record<string, unknown>);
    });
  };
  const announceEach = (kind: Kind, list: unknown, key: string) => {
    for (const item of (list as Record<string, unknown>[] | undefined) ?? [])
      announce({ kind, id: item[key] as string, data: item });
  };
  // Without a cursor the stream starts at `hello`: data that views loaded before may have changed in between.
  onEvent("hello", () => {
    if (isWithoutCursor) announceAll();
  });
  onEvent("jobs", (data) => announceEach("job", data.jobs, "job_id"));
  onEvent("assets", (data) => announceEach("asset", data.assets, "asset_id"));
  onEvent("queues", () => announce({ kind: "queue", id: null, data: {} }));
  onEvent("instances", () => announce({ kind: "instance", id: null, data: {} }));
  onEvent("resync", announceAll);
}

/** End the stream and reset the connection state, so that the stream of the next session starts without failures. */
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
