/** Sliders for the range of values that the colours cover, below a histogram of the values. */
import { useEffect, useState } from "preact/hooks";
import { measure } from "../format";

export function HistogramRange(props: {
  histogram: [number[], number[]] | null;
  low: number | null;
  high: number | null;
  onChange: (low: number, high: number) => void;
}) {
  const [low, setLow] = useState(props.low);
  const [high, setHigh] = useState(props.high);
  useEffect(() => {
    setLow(props.low);
    setHigh(props.high);
  }, [props.low, props.high]);
  if (low === null || high === null) return null;
  const [counts, edges] = props.histogram ?? [[], []];
  const [min, max] = [Math.min(edges[0] ?? low, low), Math.max(edges.at(-1) ?? high, high)];
  const maxCount = Math.max(1, ...counts);
  const step = (max - min) / 200 || 1;
  const commit = () => {
    if (low < high) props.onChange(Number(low.toPrecision(7)), Number(high.toPrecision(7)));
  };
  const slider = (label: string, value: number, set: (value: number) => void) => (
    <input
      type="range"
      aria-label={label}
      aria-valuetext={measure(value)}
      min={min}
      max={max}
      step={step}
      value={value}
      onInput={(event) => set(Number(event.currentTarget.value))}
      onChange={commit}
    />
  );
  return (
    <div class="field">
      <span class="label">
        Values {measure(low)} to {measure(high)}
      </span>
      {counts.length > 0 && (
        <svg class="histogram" viewBox={`0 0 ${counts.length} 32`} preserveAspectRatio="none" aria-hidden="true">
          {counts.map((count, place) => {
            const from = edges[place] ?? 0;
            const isIn = from >= low && from <= high;
            const height = 32 * Math.sqrt(count / maxCount);
            return (
              <rect key={place} x={place} y={32 - height} width={0.9} height={height} class={isIn ? "in" : "out"} />
            );
          })}
        </svg>
      )}
      {slider("Lowest value", low, (value) => setLow(Math.min(value, high)))}
      {slider("Highest value", high, (value) => setHigh(Math.max(value, low)))}
    </div>
  );
}
