/** Lists that are loaded page by page and grow as they are read. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Change, onChanges } from "./live";

export interface Page<T> {
  items: T[];
  next?: string | null;
}

/** A page that is shown, and the cursor that it was loaded with. */
export interface Shown<T> {
  after: string | undefined;
  items: T[];
  next: string | null;
}

export interface Paged<T> {
  items: T[] | null;
  hasMore: boolean;
  isLoading: boolean;
  problem: Error | null;
  more: () => void;
  reload: () => void;
}

/** The cursor of a list whose `after` is a number. */
export function asNumber(after: string | undefined): number | undefined {
  return after === undefined ? undefined : Number(after);
}

const MOST_RENEWED = 10;

/** The same number of pages, loaded again: someone who has read on keeps the place. Of very long lists the last page. */
export async function renewed<T>(
  shown: Shown<T>[],
  load: (after: string | undefined) => Promise<Page<T>>,
): Promise<Shown<T>[]> {
  const first = shown.length > MOST_RENEWED ? shown.length - 1 : 0;
  const pages = shown.slice(0, first);
  let after = shown[first]?.after;
  do {
    const page = await load(after);
    pages.push({ after, items: page.items, next: page.next ?? null });
    after = page.next ?? undefined;
  } while (pages.length < shown.length && after !== undefined);
  return pages;
}

interface State<T> {
  pages: Shown<T>[] | null;
  items: T[] | null;
  isLoading: boolean;
  problem: Error | null;
}

const UNLOADED = { pages: null, items: null, isLoading: true, problem: null };

export function usePaged<T>(
  key: string,
  load: (after: string | undefined, signal: AbortSignal) => Promise<Page<T>>,
  isAffectedBy?: (change: Change) => boolean,
): Paged<T> {
  const state = useSignal<State<T>>(UNLOADED);
  const controller = useRef<AbortController | null>(null);
  const fetchPages = async (mode: "more" | "renew") => {
    const shown = state.peek().pages ?? [];
    const last = shown.at(-1);
    if (mode === "more" && (state.peek().isLoading || !last?.next)) return;
    controller.current?.abort();
    const own = new AbortController();
    controller.current = own;
    state.value = { ...state.peek(), isLoading: true };
    try {
      const one = (after: string | undefined) => load(after, own.signal);
      const added = mode === "more" ? [{ after: last?.next ?? undefined, items: [], next: null }] : [];
      const pages = mode === "more" ? [...shown, ...(await renewed<T>(added, one))] : await renewed(shown, one);
      if (own.signal.aborted) return;
      state.value = { pages, items: pages.flatMap((page) => page.items), isLoading: false, problem: null };
    } catch (error) {
      if (!own.signal.aborted) state.value = { ...state.peek(), isLoading: false, problem: error as Error };
    }
  };
  useEffect(() => {
    state.value = UNLOADED;
    fetchPages("renew");
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = onChanges((changes) => {
      if (!isAffectedBy || !changes.some(isAffectedBy)) return;
      timer ??= setTimeout(() => {
        timer = undefined;
        fetchPages("renew");
      }, 1500);
    });
    return () => {
      stop();
      clearTimeout(timer);
      controller.current?.abort();
    };
  }, [key]);
  const { pages, items, isLoading, problem } = state.value;
  return {
    items,
    hasMore: Boolean(pages?.at(-1)?.next),
    isLoading,
    problem,
    more: () => void fetchPages("more"),
    reload: () => void fetchPages("renew"),
  };
}
