import { expect, test } from "vitest";
import { aroundChanges, diffLines } from "../src/diff";
import { random } from "./random";

function randomText(next: () => number): string {
  return Array.from({ length: Math.floor(next() * 30) }, () => "abcd"[Math.floor(next() * 4)]).join("\n");
}

test.each(Array.from({ length: 80 }, (_, seed) => seed))("a difference contains both texts (seed %i)", (seed) => {
  const next = random(seed);
  const [before, after] = [randomText(next), randomText(next)];

  const lines = diffLines(before, after);

  const of = (kind: string) =>
    lines.filter((line) => line.kind === "same" || line.kind === kind).map((line) => line.text);
  expect(of("removed").join("\n")).toBe(before);
  expect(of("added").join("\n")).toBe(after);
});

test("only changed lines are marked, and lines around them are shown", () => {
  const before = Array.from({ length: 20 }, (_, place) => `line ${place}`);
  const after = [...before];
  after[10] = "changed";

  const lines = diffLines(before.join("\n"), after.join("\n"));

  expect(lines.filter((line) => line.kind !== "same")).toEqual([
    { kind: "removed", text: "line 10" },
    { kind: "added", text: "changed" },
  ]);
  const shown = aroundChanges(lines, 2);
  expect(shown[0]).toBeNull();
  expect(shown.at(-1)).toBeNull();
  expect(shown.filter((line) => line !== null)).toHaveLength(6);
});

test("very long texts are compared without a table that needs too much memory", () => {
  const [a, b] = [
    Array.from({ length: 3000 }, (_, i) => `a${i}`).join("\n"),
    Array.from({ length: 3000 }, (_, i) => `b${i}`).join("\n"),
  ];
  expect(diffLines(a, b)).toHaveLength(6000);
});
