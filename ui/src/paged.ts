/** Lists that are loaded page by page: the next page is loaded when the user asks for more. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { isConnectionLoss } from "./api/client";
import { type Change, connection, onChanges } from "./live";
import { Refresh } from "./refresh";

export interface Page<T> {
  items: T[];
  next?: string | null;
}

/** A page that is shown, and the cursor that it was loaded with. */
export interface LoadedPage<T> {
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

const MAX_RELOADED = 10;
const PAUSE_MS = 1500;

/**
 * Load the same number of pages again, so that a user who has scrolled down keeps the position. Of lists with more than
 * `MAX_RELOADED` pages, only the last page is loaded again.
 */
export async function reloadPages<T>(
  shown: LoadedPage<T>[],
  load: (after: string | undefined) => Promise<Page<T>>,
): Promise<LoadedPage<T>[]> {
  const first = shown.length > MAX_RELOADED ? shown.length - 1 : 0;
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
  pages: LoadedPage<T>[] | null;
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
  const latest = useRef({ load, isAffectedBy });
  latest.current = { load, isAffectedBy };
  const wantsMore = useRef(false);
  const refresh = useMemo(() => {
    const loadOnce = async (signal: AbortSignal) => {
      const shown = state.peek().pages ?? [];
      const loadPage = (after: string | undefined) => latest.current.load(after, signal);
      const next = wantsMore.current ? shown.at(-1)?.next : null;
      wantsMore.current = false;
      state.value = { ...state.peek(), isLoading: true };
      try {
        const pages = next
          ? [...shown, ...(await reloadPages<T>([{ after: next, items: [], next: null }], loadPage))]
          : await reloadPages(shown, loadPage);
        if (signal.aborted) return;
        state.value = { pages, items: pages.flatMap((page) => page.items), isLoading: false, problem: null };
      } catch (error) {
        if (!signal.aborted) state.value = { ...state.peek(), isLoading: false, problem: error as Error };
      }
    };
    return new Refresh(loadOnce, PAUSE_MS);
  }, [key]);
  const more = () => {
    if (state.peek().isLoading || !state.peek().pages?.at(-1)?.next) return;
    wantsMore.current = true;
    refresh.now();
  };
  useEffect(() => {
    state.value = UNLOADED;
    wantsMore.current = false;
    refresh.now();
    const stop = onChanges((changes) => {
      const affected = latest.current.isAffectedBy;
      if (affected && changes.some(affected)) refresh.soon();
    });
    const unsubscribe = connection.subscribe((value) => {
      if (value === "open" && isConnectionLoss(state.peek().problem)) refresh.soon();
    });
    return () => {
      stop();
      unsubscribe();
      refresh.stop();
    };
  }, [refresh]);
  const { pages, items, isLoading, problem } = state.value;
  return {
    items,
    hasMore: Boolean(pages?.at(-1)?.next),
    isLoading,
    problem,
    more,
    reload: () => refresh.now(),
  };
}
