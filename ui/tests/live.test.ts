import { afterEach, beforeEach, expect, test, vi } from "vitest";

/** A stream whose messages the test sends. */
class FakeSource {
  static opened: FakeSource[] = [];
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  private handlers = new Map<string, (event: { data: string; lastEventId: string }) => void>();

  constructor(readonly url: string) {
    FakeSource.opened.push(this);
  }

  addEventListener(name: string, handler: (event: { data: string; lastEventId: string }) => void): void {
    this.handlers.set(name, handler);
  }

  send(name: string, data: object, lastEventId = ""): void {
    this.handlers.get(name)?.({ data: JSON.stringify(data), lastEventId });
  }

  close(): void {}
}

const newest = () => FakeSource.opened.at(-1) as FakeSource;

/** The module, loaded again: it keeps the cursor of the tab in a variable. */
async function reloaded() {
  vi.resetModules();
  const live = await import("../src/live");
  const seen: string[] = [];
  live.onChanges((changes) => seen.push(...changes.map((change) => `${change.kind} ${change.id ?? "*"}`)));
  return { live, seen, frame: () => vi.advanceTimersByTime(20) };
}

const ALL_KINDS = ["job *", "asset *", "queue *", "instance *"];

beforeEach(() => {
  vi.useFakeTimers();
  FakeSource.opened = [];
  vi.stubGlobal("EventSource", FakeSource);
  vi.stubGlobal("document", { hidden: false });
  vi.stubGlobal("requestAnimationFrame", (work: () => void) => setTimeout(work, 16));
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("after the first hello all views load again, because changes since the page was loaded are not sent", async () => {
  const { live, seen, frame } = await reloaded();
  live.connect();
  newest().onopen?.();
  frame();
  expect(seen).toEqual([]);

  newest().send("hello", { kinds: [] }, "c1");
  frame();

  expect(seen).toEqual(ALL_KINDS);
});

test("a connection that continues from a cursor announces only the changes that the server sends", async () => {
  const { live, seen, frame } = await reloaded();
  live.connect();
  newest().send("hello", {}, "c1");
  frame();
  seen.length = 0;

  newest().onerror?.();
  live.retryNow();
  newest().onopen?.();
  newest().send("hello", {});
  newest().send("jobs", { jobs: [{ job_id: "j1" }, { job_id: "j2" }] }, "c2");
  frame();

  expect(newest().url).toContain("after=c1");
  expect(seen).toEqual(["job j1", "job j2"]);
});

test("after a connection that was lost before its first hello, the next hello announces a change of every kind", async () => {
  const { live, seen, frame } = await reloaded();
  live.connect();
  newest().onerror?.();
  expect(live.connection.value).toBe("lost");

  vi.advanceTimersByTime(live.pauseSeconds(1) * 1000);
  newest().onopen?.();
  newest().send("hello", {}, "c7");
  frame();

  expect(FakeSource.opened).toHaveLength(2);
  expect(live.connection.value).toBe("open");
  expect(seen).toEqual(ALL_KINDS);
});

test("a cursor that the server no longer knows makes all views load again", async () => {
  const { live, seen, frame } = await reloaded();
  live.connect();
  newest().send("hello", {}, "c1");
  frame();
  seen.length = 0;

  newest().send("resync", {}, "c9");
  frame();

  expect(seen).toEqual(ALL_KINDS);
});

test("ending the stream resets the connection state and stops the retries", async () => {
  const { live } = await reloaded();
  live.connect();
  newest().onerror?.();
  live.disconnect();

  expect(live.connection.value).toBe("connecting");
  expect(live.lostSince.value).toBeNull();
  expect(live.failures.value).toBe(0);
  vi.advanceTimersByTime(60_000);
  expect(FakeSource.opened).toHaveLength(1);
});
