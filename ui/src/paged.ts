/** Lists that are loaded page by page and grow as they are read. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Change, onChanges } from "./live";

interface Page<T> {
  items: T[];
  next?: string | number | null;
}

export interface Paged<T> {
  items: T[] | null;
  hasMore: boolean;
  isLoading: boolean;
  problem: Error | null;
  more: () => void;
  reload: () => void;
}

export function usePaged<T>(
  key: string,
  load: (after: string | undefined, signal: AbortSignal) => Promise<Page<T>>,
  isAffectedBy?: (change: Change) => boolean,
): Paged<T> {
  const state = useSignal<{ items: T[] | null; next: string | null; isLoading: boolean; problem: Error | null }>({
    items: null,
    next: null,
    isLoading: true,
    problem: null,
  });
  const controller = useRef<AbortController | null>(null);
  const fetchPage = async (mode: "first" | "more") => {
    if (mode === "more" && (state.peek().isLoading || state.peek().next === null)) return;
    controller.current?.abort();
    const own = new AbortController();
    controller.current = own;
    state.value = { ...state.peek(), isLoading: true };
    try {
      const page = await load(mode === "more" ? (state.peek().next ?? undefined) : undefined, own.signal);
      if (own.signal.aborted) return;
      const before = mode === "more" ? (state.peek().items ?? []) : [];
      state.value = {
        items: [...before, ...page.items],
        next: page.next === null || page.next === undefined ? null : String(page.next),
        isLoading: false,
        problem: null,
      };
    } catch (error) {
      if (!own.signal.aborted) state.value = { ...state.peek(), isLoading: false, problem: error as Error };
    }
  };
  useEffect(() => {
    state.value = { items: null, next: null, isLoading: true, problem: null };
    fetchPage("first");
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = onChanges((changes) => {
      if (!isAffectedBy || !changes.some(isAffectedBy)) return;
      timer ??= setTimeout(() => {
        timer = undefined;
        // Someone who has scrolled down keeps the place; the first page is renewed when it is alone.
        if ((state.peek().items?.length ?? 0) <= 200) fetchPage("first");
      }, 1500);
    });
    return () => {
      stop();
      clearTimeout(timer);
      controller.current?.abort();
    };
  }, [key]);
  const { items, next, isLoading, problem } = state.value;
  return {
    items,
    hasMore: next !== null,
    isLoading,
    problem,
    more: () => void fetchPage("more"),
    reload: () => void fetchPage("first"),
  };
}
