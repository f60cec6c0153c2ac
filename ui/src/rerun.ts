/** What a resume or retry runs again, and the parts of a job that can be retried. */
import type { Schemas } from "./api/client";
import { plural } from "./format";

export type Rerun = Pick<Schemas["Resumed"], "nodes" | "children">;
export type PartKind = "node" | "stage" | "failed_children";

/** `3 children of tiles` for each fan-out whose children run again, then the nodes, each in the order of the job. */
export function rerunNames({ nodes, children }: Rerun): string[] {
  const counts = Object.entries(children).map(
    ([fanOut, count]) => `${plural(count, "child", "children")} of ${fanOut}`,
  );
  return [...counts, ...nodes];
}

/** How much runs again in several jobs: `2 nodes and 3 children`; empty if nothing does. */
export function rerunCounts(reruns: readonly Rerun[]): string {
  const nodes = reruns.reduce((sum, each) => sum + each.nodes.length, 0);
  const children = reruns.flatMap((each) => Object.values(each.children)).reduce((sum, count) => sum + count, 0);
  const texts = [nodes > 0 && plural(nodes, "node"), children > 0 && plural(children, "child", "children")];
  return texts.filter(Boolean).join(" and ");
}

/** The names of the nodes, stages or fan-outs of a job that a retry accepts. */
export function partsOf(nodes: readonly Pick<Schemas["PublicNode"], "node_id" | "type" | "stage">[], kind: PartKind) {
  const retryable = nodes.filter((node) => node.type !== "start" && node.type !== "end");
  if (kind === "stage") return [...new Set(retryable.map((node) => node.stage))];
  return retryable.filter((node) => kind === "node" || node.type === "fan_out").map((node) => node.node_id);
}
