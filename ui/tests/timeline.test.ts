import { expect, test } from "vitest";
import { tickLabel, ticks, timelineOf } from "../src/timeline";

const at = (seconds: number) => new Date(1_700_000_000_000 + seconds * 1000).toISOString();

test("waiting and running are separate, and attempts of a node share a row", () => {
  const model = timelineOf(
    [
      { node_id: "b", attempt: 1, status: "failed", queued_at: at(5), started_at: at(7), finished_at: at(9) },
      { node_id: "b", attempt: 2, status: "succeeded", queued_at: at(10), started_at: at(10), finished_at: at(12) },
      { node_id: "a", attempt: 1, status: "succeeded", queued_at: at(0), started_at: at(1), finished_at: at(4) },
    ],
    0,
  );
  expect(model.rows.map((row) => row.id)).toEqual(["a", "b"]);
  expect(model.rows[1]?.bars.map((bar) => bar.attempt)).toEqual([1, 2]);
  expect(model.end - model.start).toBe(12_000);
  const [first] = model.rows[1]?.bars ?? [];
  expect(first && [(first.runFrom ?? 0) - first.waitFrom, first.to - (first.runFrom ?? 0)]).toEqual([2000, 2000]);
});

test("the bar of a running attempt ends now; an attempt that ended before it started has no length", () => {
  const now = Date.parse(at(60));
  const model = timelineOf(
    [
      { node_id: "a", attempt: 1, status: "running", queued_at: at(0), started_at: at(1), finished_at: null },
      { node_id: "b", attempt: 1, status: "cancelled", queued_at: at(2), started_at: null, finished_at: null },
    ],
    now,
  );
  expect(model.rows[0]?.bars[0]?.to).toBe(now);
  expect(model.rows[1]?.bars[0]).toMatchObject({ runFrom: null, to: Date.parse(at(2)) });
});

test("a fan-out is one row from its start to its end, between the attempts of other nodes", () => {
  const model = timelineOf(
    [
      { node_id: "list", attempt: 1, status: "succeeded", queued_at: at(0), started_at: at(0), finished_at: at(2) },
      {
        node_id: "report",
        attempt: 1,
        status: "succeeded",
        queued_at: at(30),
        started_at: at(30),
        finished_at: at(31),
      },
    ],
    0,
    [
      { id: "tiles", status: "completed", count: 400, started_at: at(2), finished_at: at(30) },
      { id: "later", status: "pending", count: 0, started_at: null, finished_at: null },
    ],
  );
  expect(model.rows.map((row) => [row.id, row.children])).toEqual([
    ["list", undefined],
    ["tiles", 400],
    ["report", undefined],
  ]);
  expect(model.end - model.start).toBe(31_000);
});

test("the bar of a running fan-out ends now", () => {
  const span = { id: "tiles", status: "running", count: 4, started_at: at(2), finished_at: null };
  expect(timelineOf([], Date.parse(at(9)), [span]).rows[0]?.bars[0]?.to).toBe(Date.parse(at(9)));
});

test("no attempts give an empty timeline", () => {
  expect(timelineOf([], 5).rows).toEqual([]);
});

test.each([1, 90, 5_000, 61_000, 3_700_000, 864_000_000_000])("an axis of %i ms has few marks", (span) => {
  const marks = ticks(0, span, 8);
  expect(marks.length).toBeGreaterThan(0);
  expect(marks.length).toBeLessThanOrEqual(10);
  expect(marks.every((mark) => mark <= span)).toBe(true);
});

test("marks of an axis have short texts", () => {
  expect([0, 20, 500, 5_000, 10_000, 90_000].map(tickLabel)).toEqual([
    "0",
    "20 ms",
    "500 ms",
    "5 s",
    "10 s",
    "1 min 30 s",
  ]);
});
