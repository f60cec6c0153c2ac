/**
 * A long list of which only the visible rows exist. Rows have one height, so that scrolling measures nothing.
 *
 * The number of rows in the document stays the same: a row that leaves the screen is filled with the one that enters
 * it, and keeps its place in the document meanwhile. Each row has its own position, so those that stay on the screen are
 * neither laid out nor painted again. When scrolling has ended, a few rows at a time are put into their order, in which
 * the keyboard and screen readers find them.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const OVERSCAN = 8;
const REST_MS = 300;
const STEP_MS = 40;
const MOVED_AT_ONCE = 4;

/** As many rows at every position, if there are as many. */
export function visibleRange(top: number, height: number, rowHeight: number, count: number): [number, number] {
  const shown = Math.min(count, Math.ceil(height / rowHeight) + 1 + 2 * OVERSCAN);
  const first = Math.min(Math.max(0, Math.floor(top / rowHeight) - OVERSCAN), count - shown);
  return [first, first + shown];
}

/** The row that a slot shows: each of `count` slots has one of as many rows from the first one on. */
export function indexOf(slot: number, first: number, count: number): number {
  return first + ((((slot - first) % count) + count) % count);
}

/** The slots of the document one step nearer to the order of their rows, which is a rotation of theirs. */
export function nearerOrder(order: readonly number[], first: number): number[] {
  const ahead = order.indexOf(first % Math.max(1, order.length));
  if (ahead <= 0) return [...order];
  const behind = order.length - ahead;
  const cut = ahead <= behind ? Math.min(ahead, MOVED_AT_ONCE) : -Math.min(behind, MOVED_AT_ONCE);
  return [...order.slice(cut), ...order.slice(0, cut)];
}

export function VirtualList(props: {
  count: number;
  rowHeight: number;
  label: string;
  /** A row of its own, with `aria-rowindex` 1. */
  head?: ComponentChildren;
  /** Whether further rows are loaded when the list is read on. */
  hasMore?: boolean;
  /** The cells of a row, without a key and without a state of its own: it is used for another index when the list is scrolled. */
  row: (index: number) => ComponentChildren;
  onNearEnd?: () => void;
  foot?: ComponentChildren;
  class?: string;
}) {
  const ref = useRef<HTMLDivElement>(null);
  const { count, rowHeight, onNearEnd } = props;
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const first = Math.min(range[0], count);
  const shown = Math.min(range[1], count) - first;
  const order = useOrder(first, shown);
  const headRows = props.head ? 1 : 0;
  const update = () => {
    const box = ref.current;
    if (!box) return;
    const [top, height] = [box.scrollTop, box.clientHeight];
    const next = visibleRange(top, height, rowHeight, count);
    if (next[0] !== range[0] || next[1] !== range[1]) {
      keepFocus(box, next);
      setRange(next);
    }
    if (onNearEnd && top + 3 * height > count * rowHeight) onNearEnd();
  };
  const latest = useRef(update);
  latest.current = update;
  useEffect(update, [count, rowHeight]);
  useEffect(() => {
    const observer = new ResizeObserver(() => latest.current());
    if (ref.current) observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return (
    <div
      ref={ref}
      class={`virtual ${props.class ?? ""}`}
      onScroll={update}
      role="table"
      aria-label={props.label}
      aria-rowcount={props.hasMore ? -1 : count + headRows}
      tabIndex={0}
    >
      {props.head}
      <div role="rowgroup" class="virtual-rows" style={{ height: `${count * rowHeight}px` }}>
        {order.map((slot) => {
          const index = indexOf(slot, first, shown);
          return (
            <div
              key={slot}
              role="row"
              aria-rowindex={index + 1 + headRows}
              class="virtual-row"
              data-index={index}
              style={{ top: `${index * rowHeight}px`, height: `${rowHeight}px` }}
            >
              {props.row(index)}
            </div>
          );
        })}
      </div>
      {props.foot}
    </div>
  );
}

/** The slots in the order of the document: as they are while the list is scrolled, in order when it rests. */
function useOrder(first: number, shown: number): number[] {
  const order = useRef<number[]>([]);
  const focused = useRef<HTMLElement | null>(null);
  const [, render] = useState(0);
  if (order.current.length !== shown)
    order.current = Array.from({ length: shown }, (_, place) => (first + place) % shown);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const step = () => {
      if (shown === 0 || order.current[0] === first % shown) return;
      order.current = nearerOrder(order.current, first);
      focused.current = document.activeElement as HTMLElement | null;
      render((count) => count + 1);
      timer = setTimeout(step, STEP_MS);
    };
    timer = setTimeout(step, REST_MS);
    return () => clearTimeout(timer);
  }, [first, shown]);
  // A row that is put elsewhere in the document loses the focus.
  useLayoutEffect(() => {
    if (focused.current?.isConnected && document.activeElement === document.body)
      focused.current.focus({ preventScroll: true });
    focused.current = null;
  });
  return order.current;
}

/** The list gets the focus of a row that leaves the screen: otherwise the keys would no longer scroll it. */
function keepFocus(box: HTMLElement, [first, last]: [number, number]): void {
  const focused = document.activeElement;
  if (!focused || focused === box || !box.contains(focused)) return;
  const row = focused.closest<HTMLElement>(".virtual-row");
  if (row && (Number(row.dataset.index) < first || Number(row.dataset.index) >= last))
    box.focus({ preventScroll: true });
}
