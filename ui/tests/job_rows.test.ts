import { describe, expect, it } from "vitest";
import { JobRows, type ListedJob } from "../src/job_rows";
import { random } from "./random";

function job(number: number, more: Partial<ListedJob> = {}): ListedJob {
  const created = new Date(Date.UTC(2026, 0, 1) + number * 1000).toISOString();
  return {
    job_id: `job-${String(number).padStart(6, "0")}`,
    status: "running",
    created_at: created,
    version: 1,
    ...more,
  };
}

const idsOf = (rows: JobRows<ListedJob>) => rows.items.map((each) => each.job_id);
const change = (id: string | null, data: Record<string, unknown> = {}) => ({ kind: "job", id, data });

describe("the rows of the list of jobs", () => {
  it("are sorted with the newest job first, in whatever order pages arrive", () => {
    const next = random(7);
    for (let round = 0; round < 50; round += 1) {
      const rows = new JobRows<ListedJob>([]);
      const numbers = new Set<number>();
      for (let page = 0; page < 6; page += 1) {
        const some = Array.from({ length: 5 }, () => Math.floor(next() * 60)).sort((a, b) => b - a);
        for (const each of some) numbers.add(each);
        rows.add([...new Set(some)].map((each) => job(each)));
      }
      expect(idsOf(rows)).toEqual([...numbers].sort((a, b) => b - a).map((each) => job(each).job_id));
    }
  });

  it("are still updated by their id after a page was inserted before them", () => {
    const rows = new JobRows<ListedJob>([]);
    rows.add([job(2), job(1)]);
    rows.add([job(3), job(2)]);
    rows.change([change("job-000001", { status: "failed", version: 2 })]);
    expect(rows.items.map((each) => each.status)).toEqual(["running", "running", "failed"]);
  });

  it.each([
    { added: 0, pages: 1, requests: 1, isComplete: true, why: "there are no new jobs" },
    { added: 5, pages: 1, requests: 2, isComplete: true, why: "the new jobs fill more than one page" },
    { added: 0, pages: 3, requests: 3, isComplete: true, why: "three pages are shown, and all may have changed" },
    { added: 50, pages: 1, requests: 10, isComplete: false, why: "there are too many new jobs" },
  ])("catch up with $requests pages: $why", async ({ added, pages, requests, isComplete }) => {
    const all = Array.from({ length: 20 + added }, (_, place) => job(20 + added - place, { version: 2 }));
    const rows = new JobRows<ListedJob>([]);
    rows.add(Array.from({ length: 20 }, (_, place) => job(20 - place)));
    let count = 0;
    const load = async (after: string | undefined) => {
      count += 1;
      const start = Number(after ?? 0);
      return { items: all.slice(start, start + 4), next: start + 4 < all.length ? String(start + 4) : null };
    };

    expect(await rows.catchUp(load, pages)).toBe(isComplete);
    expect(count).toBe(requests);
    if (!isComplete) return;
    expect(rows.items).toHaveLength(all.length);
    expect(rows.items.filter((each) => each.version === 2)).toHaveLength(requests * 4);
  });

  it("stay the same objects if nothing has changed", () => {
    const rows = new JobRows<ListedJob>([]);
    const ended = { status: "completed", completed_at: "2026-01-01T00:01:00Z" };
    rows.add([job(2, ended), job(1, ended)]);
    const before = rows.items;
    rows.add([job(2, ended), job(1, ended)]);
    expect(rows.items).toBe(before);
  });

  it("do not go back to an older state", () => {
    const rows = new JobRows<ListedJob>([]);
    rows.add([job(1, { status: "completed", version: 5 })]);
    rows.change([change("job-000001", { status: "running", version: 4 })]);
    rows.add([job(1, { status: "running", version: 3 })]);
    expect(rows.items[0]?.status).toBe("completed");
  });

  it("leave a filtered list when their state no longer matches, and return when it matches again", () => {
    const rows = new JobRows<ListedJob>(["running"]);
    rows.add([job(2), job(1)]);
    rows.change([change("job-000002", { status: "failed", version: 2 })]);
    expect(idsOf(rows)).toEqual(["job-000001"]);
    rows.change([change("job-000002", { status: "running", version: 3 })]);
    expect(idsOf(rows)).toEqual(["job-000002", "job-000001"]);
  });

  it("report a change of a job that is not in the list, and a change of any job", () => {
    const rows = new JobRows<ListedJob>([]);
    rows.add([job(1)]);
    expect(rows.change([change("job-000001", { version: 2 })])).toBe(false);
    expect(rows.change([change("another")])).toBe(true);
    expect(rows.change([change(null)])).toBe(true);
    expect(rows.change([{ kind: "asset", id: "another", data: {} }])).toBe(false);
  });
});
