/**
 * Places the nodes of a workflow in layers from left to right, or on narrow screens from top to bottom.
 *
 * The layer of a node is the length of the longest path to it. Within a layer, nodes are ordered by the mean position
 * of their neighbours, in a few sweeps, so that fewer edges cross. Pure: the same graph gives the same picture.
 */
export interface GraphInput {
  nodes: readonly { id: string; width: number; height: number }[];
  edges: readonly { source: string; target: string }[];
}

export interface PlacedNode {
  id: string;
  x: number;
  y: number;
  width: number;
  height: number;
  layer: number;
}

export interface Layout {
  nodes: Map<string, PlacedNode>;
  width: number;
  height: number;
}

export const LAYER_GAP = 30;
export const ROW_GAP = 18;

export function layersOf(input: GraphInput): Map<string, number> {
  const incoming = new Map<string, string[]>(input.nodes.map((node) => [node.id, []]));
  for (const edge of input.edges) if (incoming.has(edge.source)) incoming.get(edge.target)?.push(edge.source);
  const layers = new Map<string, number>();
  const depth = (id: string, above: ReadonlySet<string>): number => {
    const known = layers.get(id);
    if (known !== undefined) return known;
    if (above.has(id)) return 0; // a cycle: the loader refuses cycles, but drawing must end in any case
    const next = new Set(above).add(id);
    const layer = Math.max(-1, ...(incoming.get(id) ?? []).map((source) => depth(source, next))) + 1;
    layers.set(id, layer);
    return layer;
  };
  for (const node of input.nodes) depth(node.id, new Set());
  return layers;
}

export function layout(input: GraphInput): Layout {
  const layerOf = layersOf(input);
  const layers: string[][] = [];
  for (const node of input.nodes) {
    const layer = layerOf.get(node.id) ?? 0;
    while (layers.length <= layer) layers.push([]);
    layers[layer]?.push(node.id);
  }
  const neighbours = (direction: "source" | "target") => {
    const map = new Map<string, string[]>();
    for (const edge of input.edges) {
      const [from, to] = direction === "source" ? [edge.target, edge.source] : [edge.source, edge.target];
      map.set(from, [...(map.get(from) ?? []), to]);
    }
    return map;
  };
  const [before, after] = [neighbours("source"), neighbours("target")];
  for (let sweep = 0; sweep < 6; sweep += 1) {
    const isForward = sweep % 2 === 0;
    const order = isForward ? layers.keys() : [...layers.keys()].reverse();
    for (const index of order) sortLayer(layers, index, isForward ? before : after);
  }
  return place(input, layers, before);
}

function sortLayer(layers: string[][], index: number, neighbours: Map<string, string[]>): void {
  const places = new Map<string, number>();
  for (const layer of layers)
    for (const [place, id] of layer.entries()) places.set(id, place / Math.max(1, layer.length - 1));
  const layer = layers[index];
  if (!layer) return;
  const centre = (id: string): number => {
    const known = (neighbours.get(id) ?? []).map((other) => places.get(other) ?? 0.5);
    return known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : (places.get(id) ?? 0.5);
  };
  const keyed = layer.map((id, place) => ({ id, key: centre(id), place }));
  keyed.sort((a, b) => a.key - b.key || a.place - b.place);
  layers[index] = keyed.map((each) => each.id);
}

function place(input: GraphInput, layers: string[][], before: Map<string, string[]>): Layout {
  const size = new Map(input.nodes.map((node) => [node.id, node]));
  const heights = layers.map((layer) =>
    layer.reduce((sum, id) => sum + (size.get(id)?.height ?? 0) + ROW_GAP, -ROW_GAP),
  );
  const height = Math.max(0, ...heights);
  const nodes = new Map<string, PlacedNode>();
  let x = 0;
  for (const [index, layer] of layers.entries()) {
    const width = Math.max(0, ...layer.map((id) => size.get(id)?.width ?? 0));
    // Each node is placed at the height of its predecessors, or lower if the nodes above it need the room.
    let free = 0;
    const spare = height - (heights[index] ?? 0);
    let heightLeft = heights[index] ?? 0;
    for (const id of layer) {
      const box = size.get(id);
      if (!box) continue;
      const centre = centreOf(before.get(id) ?? [], nodes);
      const y = centre === null ? free + (free === 0 ? spare / 2 : 0) : centre - box.height / 2;
      const top = Math.min(Math.max(y, free), height - heightLeft);
      nodes.set(id, { id, x, y: top, width: box.width, height: box.height, layer: index });
      free = top + box.height + ROW_GAP;
      heightLeft -= box.height + ROW_GAP;
    }
    x += width + LAYER_GAP;
  }
  return { nodes, width: Math.max(0, x - LAYER_GAP), height };
}

function centreOf(ids: string[], placed: Map<string, PlacedNode>): number | null {
  const known = ids.map((id) => placed.get(id)).filter((node) => node !== undefined);
  if (known.length === 0) return null;
  return known.reduce((sum, node) => sum + node.y + node.height / 2, 0) / known.length;
}

/** The same graph from top to bottom. */
export function layoutDown(input: GraphInput): Layout {
  const turned = layout({ nodes: input.nodes.map(turn), edges: input.edges });
  const nodes = [...turned.nodes.values()].map((node) => ({ ...turn(node), x: node.y, y: node.x }));
  return { nodes: new Map(nodes.map((node) => [node.id, node])), width: turned.height, height: turned.width };
}

function turn<T extends { width: number; height: number }>(box: T): T {
  return { ...box, width: box.height, height: box.width };
}

/** The curve from the lower side of one node to the upper side of another. */
export function curveDown(from: PlacedNode, to: PlacedNode): string {
  const [x1, y1] = [from.x + from.width / 2, from.y + from.height];
  const [x2, y2] = [to.x + to.width / 2, to.y];
  const bend = Math.max(12, (y2 - y1) / 2);
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

/** The curve from the right side of one node to the left side of another. */
export function curve(from: PlacedNode, to: PlacedNode): string {
  const [x1, y1] = [from.x + from.width, from.y + from.height / 2];
  const [x2, y2] = [to.x, to.y + to.height / 2];
  const bend = Math.max(16, (x2 - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
