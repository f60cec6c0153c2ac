/** Data of the server for views: it is loaded again when it changes, and the old data is shown until then. */
import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { ApiProblem } from "./api/client";
import { type Change, connection, onChanges } from "./live";
import { Refresh } from "./refresh";

export interface Resource<T> {
  data: T | null;
  problem: ApiProblem | null;
  isLoading: boolean;
  reload: () => void;
}

interface Options {
  /** Which changes cause the data to be loaded again. */
  isAffectedBy?: (change: Change) => boolean;
  /** The shortest time between two loads that changes cause. */
  atMostEveryMs?: number;
  /** The interval at which the data is loaded again even if no change was announced. */
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
  const latest = useRef({ load, options });
  latest.current = { load, options };
  const enabled = options.enabled ?? true;
  const refresh = useMemo(() => {
    const loadOnce = async (signal: AbortSignal) => {
      const previous = state.peek();
      const isSame = previous.key === key;
      state.value = {
        key,
        isLoading: true,
        data: isSame ? previous.data : null,
        problem: isSame ? previous.problem : null,
      };
      try {
        const data = await latest.current.load(signal);
        if (!signal.aborted) state.value = { key, data, problem: null, isLoading: false };
      } catch (problem) {
        if (!signal.aborted) state.value = { ...state.peek(), problem: problem as ApiProblem, isLoading: false };
      }
    };
    return new Refresh(loadOnce, options.atMostEveryMs ?? 1000);
  }, [key]);

  useEffect(() => {
    if (!enabled) return;
    refresh.now();
    const stop = onChanges((changes) => {
      const { isAffectedBy } = latest.current.options;
      if (isAffectedBy && changes.some(isAffectedBy)) refresh.soon();
    });
    const unsubscribe = connection.subscribe((value) => {
      if (value === "open" && state.peek().problem?.isConnectionLoss) refresh.soon();
    });
    return () => {
      stop();
      unsubscribe();
      refresh.stop();
    };
  }, [refresh, enabled]);

  useEffect(() => {
    if (!enabled || !options.everyMs) return;
    const clock = setInterval(() => refresh.soon(), options.everyMs);
    return () => clearInterval(clock);
  }, [refresh, enabled, options.everyMs]);

  const { value } = state;
  const isOwn = value.key === key;
  return {
    data: isOwn ? value.data : null,
    problem: isOwn ? value.problem : null,
    isLoading: value.isLoading,
    reload: () => refresh.now(),
  };
}

/** The current time, updated every second, for ages, and for durations of what still runs. */
export const now: Signal<number> = signal(Date.now());
/** The current time, updated every ten seconds, for ages that are shown in minutes, hours or days. */
const slowNow: Signal<number> = signal(Date.now());
setInterval(() => {
  if (document.hidden) return;
  now.value = Date.now();
  if (now.value - slowNow.value >= 10_000) slowNow.value = now.value;
}, 1000);

/** The current time for the age of `moment`: a view that calls this is drawn again as often as the age can change. */
export function nowFor(moment: string): number {
  const isOld = now.peek() - Date.parse(moment) > 120_000;
  return isOld ? Math.max(slowNow.value, now.peek()) : now.value;
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
      // Private windows may forbid storage; the value is then kept until the page is closed.
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
