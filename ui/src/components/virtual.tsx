/**
 * A long list of which only the visible rows are in the document. All rows have the same height, so that nothing has to
 * be measured while scrolling.
 *
 * The document has a fixed number of elements for rows, the slots. The slot of a row that leaves the screen is used for
 * the row that enters it, and is not moved in the document while the list is scrolled. Slots are positioned absolutely,
 * so those that stay on the screen are neither laid out nor painted again. When scrolling has ended, the slots are
 * moved, a few at a time, into the order of their rows, because the keyboard and screen readers follow the document.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const OVERSCAN = 8;
const REORDER_DELAY_MS = 300;
const REORDER_INTERVAL_MS = 40;
const MOVED_AT_ONCE = 4;

/** The first row to show, and the one after the last. Their number is the same everywhere, if there are enough rows. */
export function visibleRange(top: number, height: number, rowHeight: number, count: number): [number, number] {
  const shown = Math.min(count, Math.ceil(height / rowHeight) + 1 + 2 * OVERSCAN);
  const first = Math.min(Math.max(0, Math.floor(top / rowHeight) - OVERSCAN), count - shown);
  return [first, first + shown];
}

/** The row that a slot shows: the `count` slots show the `count` rows from `first` on, one each. */
export function indexOf(slot: number, first: number, count: number): number {
  return first + ((((slot - first) % count) + count) % count);
}

/** The slots after one step towards the order of their rows, which is a rotation of their order in the document. */
export function stepTowardsRowOrder(order: readonly number[], first: number): number[] {
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
  /** The header row, with `aria-rowindex` 1. */
  head?: ComponentChildren;
  /** Whether more rows will be loaded when the user scrolls near the end. */
  hasMore?: boolean;
  /** The cells of a row. They must have no key and no state: scrolling uses the same elements for another index. */
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

/** The slots in the order of the document: unchanged while the list is scrolled, then moved to the order of the rows. */
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
      order.current = stepTowardsRowOrder(order.current, first);
      focused.current = document.activeElement as HTMLElement | null;
      render((count) => count + 1);
      timer = setTimeout(step, REORDER_INTERVAL_MS);
    };
    timer = setTimeout(step, REORDER_DELAY_MS);
    return () => clearTimeout(timer);
  }, [first, shown]);
  // An element that is moved in the document loses the focus, so it is given back.
  useLayoutEffect(() => {
    if (focused.current?.isConnected && document.activeElement === document.body)
      focused.current.focus({ preventScroll: true });
    focused.current = null;
  });
  return order.current;
}

/** Moves the focus from a row that leaves the screen to the list: otherwise the keys would no longer scroll it. */
function keepFocus(box: HTMLElement, [first, last]: [number, number]): void {
  const focused = document.activeElement;
  if (!focused || focused === box || !box.contains(focused)) return;
  const row = focused.closest<HTMLElement>(".virtual-row");
  if (row && (Number(row.dataset.index) < first || Number(row.dataset.index) >= last))
    box.focus({ preventScroll: true });
}
