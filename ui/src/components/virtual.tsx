/** A long list of which only the visible rows exist. Rows have one height, so that scrolling measures nothing. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const OVERSCAN = 8;

export function visibleRange(top: number, height: number, rowHeight: number, count: number): [number, number] {
  const last = Math.min(count, Math.ceil((top + height) / rowHeight) + OVERSCAN);
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight), last - Math.ceil(height / rowHeight)) - OVERSCAN);
  return [first, last];
}

export function VirtualList(props: {
  count: number;
  rowHeight: number;
  label: string;
  head?: ComponentChildren;
  row: (index: number) => ComponentChildren;
  onNearEnd?: () => void;
  foot?: ComponentChildren;
  class?: string;
}) {
  const ref = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const { count, rowHeight, onNearEnd } = props;
  const update = () => {
    const box = ref.current;
    if (!box) return;
    const next = visibleRange(box.scrollTop, box.clientHeight, rowHeight, count);
    setRange((old) => (old[0] === next[0] && old[1] === next[1] ? old : next));
    if (onNearEnd && box.scrollTop + 2 * box.clientHeight > count * rowHeight) onNearEnd();
  };
  const latest = useRef(update);
  latest.current = update;
  useEffect(update, [count, rowHeight]);
  useEffect(() => {
    const observer = new ResizeObserver(() => latest.current());
    if (ref.current) observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  const [first, last] = [Math.min(range[0], count), Math.min(range[1], count)];
  return (
    <div
      ref={ref}
      class={`virtual ${props.class ?? ""}`}
      onScroll={update}
      role="table"
      aria-label={props.label}
      aria-rowcount={count}
      tabIndex={0}
    >
      {props.head}
      <div role="rowgroup" style={{ height: `${count * rowHeight}px`, position: "relative" }}>
        <div style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {Array.from({ length: Math.max(0, last - first) }, (_, place) => props.row(first + place))}
        </div>
      </div>
      {props.foot}
    </div>
  );
}
