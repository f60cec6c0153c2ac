/** States as colour, icon and word: never by colour alone. */
import { words } from "../format";
import { Icon, type IconName } from "./icons";

export type Tone = "green" | "blue" | "red" | "amber" | "violet" | "grey";

interface Appearance {
  tone: Tone;
  icon: IconName;
  word?: string;
}

const APPEARANCES: Record<string, Appearance> = {
  // jobs and nodes
  pending: { tone: "grey", icon: "clock", word: "waiting" },
  queued: { tone: "grey", icon: "clock" },
  ready: { tone: "violet", icon: "clock" },
  dispatched: { tone: "violet", icon: "clock", word: "queued" },
  running: { tone: "blue", icon: "running" },
  processing: { tone: "blue", icon: "running" },
  completed: { tone: "green", icon: "check" },
  succeeded: { tone: "green", icon: "check" },
  partial_success: { tone: "amber", icon: "half", word: "partial" },
  partial: { tone: "amber", icon: "half" },
  failed: { tone: "red", icon: "cross" },
  lost: { tone: "red", icon: "warning" },
  returned: { tone: "grey", icon: "refresh", word: "given back" },
  cancelled: { tone: "grey", icon: "stop" },
  skipped: { tone: "grey", icon: "skip" },
  retrying: { tone: "amber", icon: "refresh" },
  // assets
  pending_review: { tone: "amber", icon: "review", word: "needs review" },
  awaiting_review: { tone: "amber", icon: "review", word: "needs review" },
  approved: { tone: "green", icon: "check" },
  rejected: { tone: "red", icon: "cross" },
  published: { tone: "green", icon: "globe" },
  unpublished: { tone: "grey", icon: "stop" },
  deleted: { tone: "grey", icon: "cross" },
  received: { tone: "grey", icon: "clock" },
  invalid: { tone: "red", icon: "warning" },
  uncleared: { tone: "grey", icon: "lock", word: "not cleared" },
  ouo: { tone: "violet", icon: "lock", word: "official use only" },
  public: { tone: "green", icon: "globe" },
  // system
  alive: { tone: "green", icon: "check" },
  silent: { tone: "red", icon: "warning", word: "no heartbeat" },
  paused: { tone: "amber", icon: "pause" },
  delivered: { tone: "green", icon: "check" },
  due: { tone: "amber", icon: "clock" },
  exported: { tone: "green", icon: "globe" },
  withdrawing: { tone: "amber", icon: "running" },
  withdrawn: { tone: "grey", icon: "stop" },
};

export function appearanceOf(state: string): Appearance {
  return APPEARANCES[state] ?? { tone: "grey", icon: "info" };
}

export function wordOf(state: string): string {
  return APPEARANCES[state]?.word ?? words(state);
}

export function StateBadge({
  state,
  plain = false,
  word,
}: {
  state: string;
  plain?: boolean;
  word?: string | undefined;
}) {
  const appearance = appearanceOf(state);
  return (
    <span class={`state tone-${appearance.tone}${plain ? " plain" : ""}`}>
      <Icon name={appearance.icon} size={13} spins={appearance.icon === "running"} />
      {word ?? wordOf(state)}
    </span>
  );
}
