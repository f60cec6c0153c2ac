/** Computes a timeline: one row per node, and one bar per attempt with separate times of waiting and running. Pure. */
import { duration } from "./format";

export interface AttemptTimes {
  node_id: string;
  label?: string | null;
  attempt: number;
  status: string;
  queued_at: string;
  started_at: string | null;
  finished_at: string | null;
}

export interface Bar {
  attempt: number;
  status: string;
  waitFrom: number;
  runFrom: number | null;
  to: number;
}

/** When the children of a fan-out ran, from the first to the last. */
export interface Span {
  id: string;
  status: string;
  count: number;
  started_at: string | null;
  finished_at: string | null;
}

export interface TimelineRow {
  id: string;
  label: string;
  bars: Bar[];
  /** The number of children, if the row stands for a fan-out. */
  children?: number;
}

export interface TimelineModel {
  rows: TimelineRow[];
  start: number;
  end: number;
}

export function timelineOf(entries: readonly AttemptTimes[], now: number, spans: readonly Span[] = []): TimelineModel {
  const rows = new Map<string, TimelineRow>();
  let start = Number.POSITIVE_INFINITY;
  let end = Number.NEGATIVE_INFINITY;
  for (const entry of entries) {
    const waitFrom = Date.parse(entry.queued_at);
    const runFrom = entry.started_at ? Date.parse(entry.started_at) : null;
    const isOpen = entry.finished_at === null && ["queued", "running"].includes(entry.status);
    const to = entry.finished_at
      ? Date.parse(entry.finished_at)
      : isOpen
        ? Math.max(now, runFrom ?? waitFrom)
        : (runFrom ?? waitFrom);
    start = Math.min(start, waitFrom);
    end = Math.max(end, to);
    const row = rows.get(entry.node_id) ?? { id: entry.node_id, label: entry.label ?? entry.node_id, bars: [] };
    row.bars.push({ attempt: entry.attempt, status: entry.status, waitFrom, runFrom, to });
    rows.set(entry.node_id, row);
  }
  for (const span of spans) {
    if (!span.started_at) continue;
    const from = Date.parse(span.started_at);
    const to = span.finished_at ? Date.parse(span.finished_at) : Math.max(now, from);
    start = Math.min(start, from);
    end = Math.max(end, to);
    const bars = [{ attempt: 1, status: span.status, waitFrom: from, runFrom: from, to }];
    rows.set(span.id, { id: span.id, label: span.id, bars, children: span.count });
  }
  if (rows.size === 0) return { rows: [], start: now, end: now };
  const names = new Intl.Collator("en", { numeric: true });
  const sorted = [...rows.values()].sort(
    (a, b) => (a.bars[0]?.waitFrom ?? 0) - (b.bars[0]?.waitFrom ?? 0) || names.compare(a.id, b.id),
  );
  return { rows: sorted, start, end: Math.max(end, start + 1) };
}

/** The marks of a time axis, in milliseconds from its start: multiples of a round step, at most `maxCount`. */
export function ticks(start: number, end: number, maxCount: number): number[] {
  const span = Math.max(1, end - start);
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500].concat(
    [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800].map(
      (s) => s * 1000,
    ),
  );
  const step = steps.find((each) => span / each <= maxCount) ?? span / maxCount;
  const marks: number[] = [];
  // The last mark needs room for its text.
  for (let at = 0; at <= span * 0.95; at += step) marks.push(at);
  return marks;
}

/** The text of a mark: `2 s` instead of `2.0 s`. */
export function tickLabel(at: number): string {
  return at === 0 ? "0" : duration(at / 1000).replace(/\.0 s$/, " s");
}
