import { expect, test } from "vitest";
import { indexOf, stepTowardsRowOrder, visibleRange } from "../src/components/virtual";

test.each([
  [0, 10_000],
  [1_000, 10_000],
  [359_000, 10_000],
  [999_999, 10_000],
  [0, 0],
  [0, 3],
])("at %i px of %i rows the visible rows are in the document, and few others", (top, count) => {
  const [first, last] = visibleRange(top, 700, 36, count);
  expect(first).toBeGreaterThanOrEqual(0);
  expect(last).toBeLessThanOrEqual(count);
  expect(last - first).toBeLessThan(40);
  expect(first * 36).toBeLessThanOrEqual(top);
  expect(last * 36).toBeGreaterThanOrEqual(Math.min(count * 36, top + 700));
});

test("the number of rows is the same at every position, so that no element is created while the list is scrolled", () => {
  const lengths = new Set<number>();
  for (let top = 0; top < 360_000 - 700; top += 131) {
    const [first, last] = visibleRange(top, 700, 36, 10_000);
    lengths.add(last - first);
  }
  expect(lengths.size).toBe(1);
});

test("each slot shows one of the visible rows, and a row that stays visible stays in its slot", () => {
  const count = 37;
  for (const first of [0, 1, 36, 37, 40, 1000]) {
    const rows = Array.from({ length: count }, (_, slot) => indexOf(slot, first, count));
    expect([...rows].sort((a, b) => a - b)).toEqual(Array.from({ length: count }, (_, place) => first + place));
    const later = Array.from({ length: count }, (_, slot) => indexOf(slot, first + 7, count));
    expect(rows.filter((row, slot) => row === later[slot]).length).toBe(count - 7);
  }
});

test.each([
  0, 3, 18, 19, 30, 36, 1000,
])("from row %i on, the slots get into the order of their rows in few steps", (first) => {
  const count = 37;
  let order = Array.from({ length: count }, (_, slot) => slot);
  let steps = 0;
  for (; order[0] !== first % count; steps += 1) order = stepTowardsRowOrder(order, first);
  expect(order.map((slot) => indexOf(slot, first, count))).toEqual(
    Array.from({ length: count }, (_, place) => first + place),
  );
  expect(steps).toBeLessThanOrEqual(5);
});
