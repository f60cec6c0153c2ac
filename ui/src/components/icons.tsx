/** Icons of 16 pixels, drawn with lines. They are decoration: a text next to them or a label names the control. */
const SHAPES = {
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  assets: "M8 1.8 14 5 8 8.2 2 5zM2.2 8 8 11.1 13.8 8M2.2 11 8 14.1 13.8 11",
  review: "M3 2.5h7l3 3v8H3zM5.5 9l1.8 1.8L10.8 7",
  submit: "M8 10.5V2.5M4.8 5.5 8 2.3l3.2 3.2M2.5 10.5v3h11v-3",
  workflows: "M3 3.5h3.5v3H3zM9.5 9.5H13v3H9.5zM6.5 5H11v4.5M4.8 6.5v4.5h4.7",
  system: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7 14 14",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.8V8l2.2 1.6",
  running: "M8 2a6 6 0 1 1-5.2 3",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  skip: "M3 4l5 4-5 4zM9 4v8M13 4v8",
  warning: "M8 2 14.5 13.5h-13zM8 6.5v3.2M8 11.8h.01",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.3v3.5M8 5h.01",
  half: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 2v12M8 5h3.5M8 8h5M8 11h3.5",
  stop: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM4 12 12 4",
  chevron: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  refresh: "M13.5 8A5.5 5.5 0 1 1 11.6 3.8M13.5 2v3h-3",
  download: "M8 2.5v8M4.8 7.5 8 10.7l3.2-3.2M2.5 13.5h11",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5V3M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  user: "M8 8a2.8 2.8 0 1 0 0-5.6A2.8 2.8 0 0 0 8 8zM2.8 13.8c.6-2.6 2.7-4 5.2-4s4.6 1.4 5.2 4",
  link: "M6.5 9.5 9.5 6.5M7 4.5 8.7 2.8a3.2 3.2 0 0 1 4.5 4.5L11.5 9M9 11.5l-1.7 1.7a3.2 3.2 0 0 1-4.5-4.5L4.5 7",
  external: "M9 2.5h4.5V7M13.5 2.5 7.5 8.5M11.5 9.5v4h-9v-9h4",
  lock: "M3.5 7.5h9v6h-9zM5.3 7.5V5.2a2.7 2.7 0 0 1 5.4 0v2.3",
  globe:
    "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2 8h12M8 2c2 1.8 2.8 3.8 2.8 6S10 12.2 8 14c-2-1.8-2.8-3.8-2.8-6S6 3.8 8 2z",
} as const;

export type IconName = keyof typeof SHAPES;

export function Icon({ name, spins = false, size = 16 }: { name: IconName; spins?: boolean; size?: number }) {
  return (
    <svg
      aria-hidden="true"
      class={spins ? "spin" : undefined}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.6"
      stroke-linecap="round"
      stroke-linejoin="round"
    >
      <path d={SHAPES[name]} />
    </svg>
  );
}
