/** Formats values for display. Pure: the current time is passed in. */

export function shortId(id: string): string {
  return id.length > 12 ? `${id.slice(0, 4)}…${id.slice(-6)}` : id;
}

// Created once: creating a formatter takes about a hundred times as long as using it.
const NUMBERS = new Intl.NumberFormat("en-GB");
const MOMENTS = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});

export function number(value: number): string {
  return NUMBERS.format(value);
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 999.5 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${unit === 0 || scaled >= 99.5 ? Math.round(scaled) : scaled.toFixed(1)} ${units[unit]}`;
}

/** `400 ms`, `1.5 s`, `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 2 h`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const value = Math.max(0, seconds);
  if (value < 1) return `${value < 0.0995 ? Math.round(value * 1000) : Math.round(value * 100) * 10} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  const minutes = Math.round(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

export function relative(moment: string, now: number): string {
  const seconds = (now - Date.parse(moment)) / 1000;
  const size = Math.abs(seconds);
  if (size < 5) return "now";
  const text =
    size < 90
      ? `${Math.round(size)} s`
      : size < 5400
        ? `${Math.round(size / 60)} min`
        : size < 129600
          ? `${Math.round(size / 3600)} h`
          : `${Math.round(size / 86400)} d`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

export function absolute(moment: string): string {
  return MOMENTS.format(new Date(moment));
}

export function secondsBetween(start: string | null | undefined, end: string | null | undefined, now: number): number {
  if (!start) return 0;
  return ((end ? Date.parse(end) : now) - Date.parse(start)) / 1000;
}

export function percent(share: number): string {
  return `${Math.floor(Math.min(1, Math.max(0, share)) * 100)} %`;
}

/** A name of the API (`partial_success`) as words (`partial success`). */
export function words(value: string): string {
  return value.replace(/[_-]/g, " ");
}

/** A message of the server with a capital letter at its start. */
export function sentence(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** A value of a raster, rounded to five significant digits unless it is a whole number. */
export function measure(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return number(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e9) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}
