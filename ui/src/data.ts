/** Data of the server in views: loaded, kept while it is loaded again, and refreshed when it changes. */
import { type Signal, signal, useSignal } from "@preact/signals";
import { useCallback, useEffect, useRef } from "preact/hooks";
import type { ApiProblem } from "./api/client";
import { type Change, connection, onChanges } from "./live";

export interface Resource<T> {
  data: T | null;
  problem: ApiProblem | null;
  isLoading: boolean;
  reload: () => void;
}

interface Options {
  /** Which changes of the platform make it load again. */
  isAffectedBy?: (change: Change) => boolean;
  /** The shortest time between two loads that changes cause. */
  atMostEveryMs?: number;
  /** Load again after this time, whatever the stream says. */
  everyMs?: number;
  enabled?: boolean;
}

export function useResource<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  options: Options = {},
): Resource<T> {
  const state = useSignal<{ key: string; data: T | null; problem: ApiProblem | null; isLoading: boolean }>({
    key,
    data: null,
    problem: null,
    isLoading: true,
  });
  const latest = useRef(load);
  latest.current = load;
  const controller = useRef<AbortController | null>(null);
  const enabled = options.enabled ?? true;

  const reload = useCallback(() => {
    controller.current?.abort();
    const own = new AbortController();
    controller.current = own;
    const previous = state.peek();
    state.value = { ...previous, key, isLoading: true, data: previous.key === key ? previous.data : null };
    latest.current(own.signal).then(
      (data) => {
        if (!own.signal.aborted) state.value = { key, data, problem: null, isLoading: false };
      },
      (problem: unknown) => {
        if (!own.signal.aborted) state.value = { ...state.peek(), problem: problem as ApiProblem, isLoading: false };
      },
    );
  }, [key]);

  useEffect(() => {
    if (!enabled) return;
    reload();
    return () => controller.current?.abort();
  }, [key, enabled]);

  useEffect(() => {
    if (!enabled) return;
    let waiting: ReturnType<typeof setTimeout> | undefined;
    let last = Date.now();
    const soon = () => {
      const pause = Math.max(0, (options.atMostEveryMs ?? 1000) - (Date.now() - last));
      waiting ??= setTimeout(() => {
        waiting = undefined;
        last = Date.now();
        reload();
      }, pause);
    };
    const stop = onChanges((changes) => {
      if (options.isAffectedBy && changes.some(options.isAffectedBy)) soon();
    });
    const clock = options.everyMs ? setInterval(soon, options.everyMs) : undefined;
    const unsubscribe = connection.subscribe((value) => {
      if (value === "open" && state.peek().problem?.isConnectionLoss) soon();
    });
    return () => {
      stop();
      unsubscribe();
      clearInterval(clock);
      clearTimeout(waiting);
    };
  }, [key, enabled]);

  const { value } = state;
  return { data: value.key === key ? value.data : null, problem: value.problem, isLoading: value.isLoading, reload };
}

/** The present time, renewed every second, for ages and durations of what still runs. */
export const now: Signal<number> = signal(Date.now());
/** The same, renewed every ten seconds, for what is told in minutes or more. */
const nowAndThen: Signal<number> = signal(Date.now());
setInterval(() => {
  if (document.hidden) return;
  now.value = Date.now();
  if (now.value - nowAndThen.value >= 10_000) nowAndThen.value = now.value;
}, 1000);

/** The present time, for the age of a moment: a view that reads it is drawn again as often as the age can change. */
export function nowFor(moment: string): number {
  const isOld = now.peek() - Date.parse(moment) > 120_000;
  return isOld ? Math.max(nowAndThen.value, now.peek()) : now.value;
}

/** A value that is stored in this browser. */
export function stored(name: string, initial: string): Signal<string> {
  const value = signal(read(name) ?? initial);
  let last = value.peek();
  value.subscribe((text) => {
    if (text === last) return;
    last = text;
    try {
      localStorage.setItem(`dagmaster.${name}`, text);
    } catch {
      // Private windows may forbid it; the value then lasts as long as the page.
    }
  });
  return value;
}

function read(name: string): string | null {
  try {
    return localStorage.getItem(`dagmaster.${name}`);
  } catch {
    return null;
  }
}
