import { expect, test } from "vitest";
import { partsOf, rerunCounts, rerunNames } from "../src/rerun";

test("children that run again are listed before the nodes", () => {
  expect(rerunNames({ nodes: ["merge", "end"], children: { tiles: 3, masks: 1 } })).toEqual([
    "3 children of tiles",
    "1 child of masks",
    "merge",
    "end",
  ]);
  expect(rerunNames({ nodes: [], children: { tiles: 2 } })).toEqual(["2 children of tiles"]);
});

test("nodes and children of several jobs are counted", () => {
  const rerun = { nodes: ["merge"], children: { tiles: 3 } };
  expect(rerunCounts([rerun, rerun])).toBe("2 nodes and 6 children");
  expect(rerunCounts([{ nodes: ["merge"], children: {} }])).toBe("1 node");
  expect(rerunCounts([{ nodes: [], children: { tiles: 1 } }])).toBe("1 child");
  expect(rerunCounts([{ nodes: [], children: {} }])).toBe("");
});

test("all parts of a job can be retried, except start and end", () => {
  const nodes = [
    { node_id: "begin", type: "start", stage: "prepare" },
    { node_id: "list", type: "task", stage: "prepare" },
    { node_id: "tiles", type: "fan_out", stage: "process" },
    { node_id: "merge", type: "task", stage: "process" },
    { node_id: "done", type: "end", stage: "finish" },
  ];
  expect(partsOf(nodes, "node")).toEqual(["list", "tiles", "merge"]);
  expect(partsOf(nodes, "stage")).toEqual(["prepare", "process"]);
  expect(partsOf(nodes, "failed_children")).toEqual(["tiles"]);
});
