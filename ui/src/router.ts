/** The state of the view is in the URL: a path below /ui and query parameters, available as signals. */
import { computed, signal } from "@preact/signals";

export const BASE = "/ui";

const address = signal(current());

export const path = computed(() => address.value.path);
export const query = computed(() => address.value.query);

function current(): { path: string; query: URLSearchParams } {
  const { pathname, search } = globalThis.location;
  const below = pathname.startsWith(BASE) ? pathname.slice(BASE.length) : pathname;
  return { path: `/${below.replace(/^\/+|\/+$/g, "")}`, query: new URLSearchParams(search) };
}

export function href(to: string): string {
  return `${BASE}${to.startsWith("/") ? to : `/${to}`}`;
}

export function navigate(to: string, options: { replace?: boolean } = {}): void {
  const target = href(to);
  if (target === globalThis.location.pathname + globalThis.location.search) return;
  const samePage = new URL(target, globalThis.location.origin).pathname === globalThis.location.pathname;
  if (options.replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  address.value = current();
  if (!samePage) {
    globalThis.scrollTo(0, 0);
    // The focus moves to the new page, for users of screen readers and of the keyboard.
    queueMicrotask(() => document.getElementById("main")?.focus({ preventScroll: true }));
  }
}

/** Change query parameters of the current view; null removes a parameter. */
export function setQuery(changes: Record<string, string | string[] | null>, options = { replace: true }): void {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const item of Array.isArray(value) ? value : [value]) if (item) next.append(name, item);
  }
  const text = next.toString();
  navigate(text ? `${path.value}?${text}` : path.value, options);
}

/** The value of a query parameter if it is one of the allowed `values`, otherwise null. */
export function allowedValue<T extends string>(values: readonly T[], value: string | null): T | null {
  return values.find((each) => each === value) ?? null;
}

/** Makes links between pages of the UI change the URL without loading the document again. */
export function startRouter(): void {
  globalThis.addEventListener("popstate", () => {
    address.value = current();
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download")) return;
    const to = link.getAttribute("href");
    if (!to?.startsWith(`${BASE}/`)) return;
    event.preventDefault();
    navigate(to.slice(BASE.length));
  });
}

export type Params = Record<string, string>;

/** The parameters of a path if it fits a pattern such as `/jobs/:id`. */
export function match(pattern: string, actual: string): Params | null {
  const names = pattern.split("/");
  const parts = actual.split("/");
  if (names.length !== parts.length) return null;
  const params: Params = {};
  for (const [place, name] of names.entries()) {
    const part = parts[place] ?? "";
    if (name.startsWith(":")) {
      try {
        params[name.slice(1)] = decodeURIComponent(part);
      } catch {
        return null;
      }
    } else if (name !== part) return null;
  }
  return params;
}
