/** Line differences of two texts, by their longest common subsequence. Pure. */
export interface DiffLine {
  kind: "same" | "added" | "removed";
  text: string;
}

const MAX_CELLS = 4_000_000;

export function diffLines(before: string, after: string): DiffLine[] {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = diffMiddle(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const same = (lines: string[]): DiffLine[] => lines.map((text) => ({ kind: "same", text }));
  return [...same(a.slice(0, start)), ...middle, ...same(a.slice(a.length - end))];
}

function diffMiddle(a: string[], b: string[]): DiffLine[] {
  const removed = (lines: string[]): DiffLine[] => lines.map((text) => ({ kind: "removed", text }));
  const added = (lines: string[]): DiffLine[] => lines.map((text) => ({ kind: "added", text }));
  if (a.length * b.length > MAX_CELLS) return [...removed(a), ...added(b)];
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      table[i * width + j] =
        a[i] === b[j]
          ? (table[(i + 1) * width + j + 1] ?? 0) + 1
          : Math.max(table[(i + 1) * width + j] ?? 0, table[i * width + j + 1] ?? 0);
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i] ?? "" });
      i += 1;
      j += 1;
    } else if ((table[(i + 1) * width + j] ?? 0) >= (table[i * width + j + 1] ?? 0)) {
      lines.push({ kind: "removed", text: a[i] ?? "" });
      i += 1;
    } else {
      lines.push({ kind: "added", text: b[j] ?? "" });
      j += 1;
    }
  }
  return [...lines, ...removed(a.slice(i)), ...added(b.slice(j))];
}

/** The changed lines with `context` lines around them; null stands for lines that are left out. */
export function aroundChanges(lines: DiffLine[], context = 3): (DiffLine | null)[] {
  const isShown = new Array<boolean>(lines.length).fill(false);
  for (const [place, line] of lines.entries())
    if (line.kind !== "same")
      for (let near = Math.max(0, place - context); near <= Math.min(lines.length - 1, place + context); near += 1)
        isShown[near] = true;
  const shown: (DiffLine | null)[] = [];
  for (const [place, line] of lines.entries()) {
    if (isShown[place]) shown.push(line);
    else if (shown.at(-1) !== null) shown.push(null);
  }
  return shown;
}
