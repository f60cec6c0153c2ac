/** A workflow as a picture: nodes with their states, fan-outs as one node with counts. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Icon } from "../components/icons";
import { appearanceOf, wordOf } from "../components/state";
import { number } from "../format";
import { curve, curveDown, layout, layoutDown } from "./layout";

export interface ChildCounts {
  total: number;
  done: number;
  running: number;
  retrying: number;
  waiting: number;
  failed: number;
  cancelled: number;
}

export interface DrawnNode {
  id: string;
  type: string;
  handler?: string | null;
  state?: string | null;
  detail?: string | null;
  children?: ChildCounts | null;
}

export interface DrawnEdge {
  source: string;
  target: string;
  kind: string;
  label?: string | null;
}

const WIDTH = 160;
const SMALL = 92;
/** A graph that is a little too wide is drawn smaller; a wider one scrolls. */
const SMALLEST_SCALE = 0.72;

export function Graph(props: {
  nodes: DrawnNode[];
  edges: DrawnEdge[];
  selected?: string | null;
  onSelect?: (id: string) => void;
  label: string;
}) {
  const shape = JSON.stringify([props.nodes.map((node) => [node.id, node.type]), props.edges]);
  const isVertical = useNarrow();
  const placed = useMemo(
    () =>
      (isVertical ? layoutDown : layout)({
        nodes: props.nodes.map((node) => ({
          id: node.id,
          width: isSmall(node) ? SMALL : WIDTH,
          height: isSmall(node) ? 32 : node.type === "fan_out" ? 66 : 50,
        })),
        edges: props.edges,
      }),
    [shape, isVertical],
  );
  const { ref, scale } = useScale(placed.width + 2);
  const states = new Map(props.nodes.map((node) => [node.id, node.state]));
  return (
    <div ref={ref} class="graph" role="group" aria-label={props.label}>
      <div
        style={{
          width: `${placed.width + 2}px`,
          height: `${placed.height + 2}px`,
          position: "relative",
          zoom: String(scale),
        }}
      >
        <svg width={placed.width + 2} height={placed.height + 2} aria-hidden="true">
          {props.edges.map((edge) => {
            const [from, to] = [placed.nodes.get(edge.source), placed.nodes.get(edge.target)];
            if (!from || !to) return null;
            const isPassed = ["completed", "skipped"].includes(states.get(edge.source) ?? "");
            return (
              <path
                key={`${edge.source}>${edge.target}`}
                d={(isVertical ? curveDown : curve)(from, to)}
                class={`edge${isPassed ? " passed" : ""}${states.get(edge.target) === "skipped" ? " skipped" : ""}`}
              />
            );
          })}
        </svg>
        {props.nodes.map((node) => {
          const box = placed.nodes.get(node.id);
          return (
            box && (
              <NodeBox
                key={node.id}
                node={node}
                box={box}
                isSelected={props.selected === node.id}
                onSelect={props.onSelect}
              />
            )
          );
        })}
      </div>
    </div>
  );
}

/** Whether the screen is too narrow for a graph from left to right. */
function useNarrow(): boolean {
  const [media] = useState(() => globalThis.matchMedia("(max-width: 700px)"));
  const [isNarrow, setNarrow] = useState(media.matches);
  useEffect(() => {
    const change = () => setNarrow(media.matches);
    media.addEventListener("change", change);
    return () => media.removeEventListener("change", change);
  }, [media]);
  return isNarrow;
}

function useScale(width: number) {
  const ref = useRef<HTMLDivElement>(null);
  const [scale, setScale] = useState(1);
  useLayoutEffect(() => {
    const box = ref.current;
    if (!box) return;
    const fit = () => {
      const room = box.clientWidth - 2 * 16;
      setScale(room >= width * SMALLEST_SCALE ? Math.min(1, room / width) : 1);
    };
    fit();
    const observer = new ResizeObserver(fit);
    observer.observe(box);
    return () => observer.disconnect();
  }, [width]);
  return { ref, scale };
}

function isSmall(node: DrawnNode): boolean {
  return node.type === "start" || node.type === "end";
}

function NodeBox(props: {
  node: DrawnNode;
  box: { x: number; y: number; width: number; height: number };
  isSelected: boolean;
  onSelect?: ((id: string) => void) | undefined;
}) {
  const { node, box } = props;
  const appearance = node.state ? appearanceOf(node.state) : null;
  const label = `${node.id}${node.state ? `, ${wordOf(node.state)}` : ""}${node.detail ? `, ${node.detail}` : ""}`;
  return (
    <button
      type="button"
      class={`node tone-${appearance?.tone ?? "grey"}${props.isSelected ? " selected" : ""}${isSmall(node) ? " small" : ""}`}
      style={{ left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` }}
      aria-pressed={props.isSelected}
      title={label}
      onClick={() => props.onSelect?.(node.id)}
    >
      <span class="row">
        {appearance && <Icon name={appearance.icon} size={13} spins={node.state === "running"} />}
        <strong class="ellipsis">{node.id}</strong>
        {node.state && <span class="visually-hidden">, {wordOf(node.state)}</span>}
      </span>
      {!isSmall(node) && (
        <span class="ellipsis detail">{node.detail ?? node.handler ?? node.type.replace("_", "-")}</span>
      )}
      {node.children && <Children counts={node.children} />}
    </button>
  );
}

export function partsOf(counts: ChildCounts) {
  return [
    { name: "done", count: counts.done, tone: "green" as const },
    { name: "running", count: counts.running, tone: "blue" as const },
    { name: "retrying", count: counts.retrying, tone: "amber" as const },
    { name: "failed", count: counts.failed, tone: "red" as const },
    { name: "cancelled", count: counts.cancelled, tone: "grey" as const },
  ];
}

function Children({ counts }: { counts: ChildCounts }) {
  if (counts.total === 0) return <span class="children detail">no children</span>;
  return (
    <span class="children">
      <span class="meter" aria-hidden="true">
        {partsOf(counts).map((part) => (
          <span
            key={part.name}
            class={`tone-${part.tone} fill`}
            style={{ width: `${(100 * part.count) / Math.max(1, counts.total)}%` }}
          />
        ))}
      </span>
      <span class="numeric nowrap">
        {number(counts.done)} / {number(counts.total)}
      </span>
    </span>
  );
}
