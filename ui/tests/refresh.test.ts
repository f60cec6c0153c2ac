import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Refresh } from "../src/refresh";

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

/** A `Refresh` whose loads take `takeMs` each. `shown` has the times at which loads ended that were not aborted. */
function loads(takeMs: number, pauseMs = 1000) {
  const begin = Date.now();
  const started: number[] = [];
  const shown: number[] = [];
  const refresh = new Refresh(async (signal) => {
    started.push(Date.now() - begin);
    await new Promise((done) => setTimeout(done, takeMs));
    if (!signal.aborted) shown.push(Date.now() - begin);
  }, pauseMs);
  return { refresh, started, shown };
}

test("responses that take longer than the pause between changes are shown", async () => {
  const { refresh, started, shown } = loads(3000);
  refresh.now();
  for (let second = 0; second < 10; second += 1) {
    refresh.soon();
    await vi.advanceTimersByTimeAsync(1000);
  }

  expect(shown).toHaveLength(3);
  expect(started).toHaveLength(4);
});

test("changes within the pause cause one load at its end", async () => {
  const { refresh, started } = loads(10);
  refresh.now();
  for (let count = 0; count < 20; count += 1) {
    await vi.advanceTimersByTimeAsync(20);
    refresh.soon();
  }
  await vi.advanceTimersByTimeAsync(5000);

  expect(started).toEqual([0, 1000]);
});

test("a change after the pause is loaded at once", async () => {
  const { refresh, started } = loads(10);
  refresh.now();
  await vi.advanceTimersByTimeAsync(4000);
  refresh.soon();
  await vi.advanceTimersByTimeAsync(0);

  expect(started).toEqual([0, 4000]);
});

test("a load that is requested now replaces a running one", async () => {
  const { refresh, started, shown } = loads(500);
  refresh.now();
  await vi.advanceTimersByTimeAsync(100);
  refresh.now();
  await vi.advanceTimersByTimeAsync(5000);

  expect(started).toEqual([0, 100]);
  expect(shown).toEqual([600]);
});

test("after a stop nothing is loaded or shown", async () => {
  const { refresh, started, shown } = loads(500);
  refresh.now();
  refresh.soon();
  refresh.stop();
  await vi.advanceTimersByTimeAsync(5000);
  refresh.soon();
  refresh.stop();
  await vi.advanceTimersByTimeAsync(5000);

  expect(started).toEqual([0]);
  expect(shown).toEqual([]);
});
