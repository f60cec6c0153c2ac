/** Short messages about what happened, read aloud by screen readers. */
import { signal } from "@preact/signals";
import { href } from "../router";
import { Icon } from "./icons";
import type { Tone } from "./state";

interface Toast {
  id: number;
  tone: Tone;
  text: string;
  link: { to: string; label: string } | null;
}

const toasts = signal<Toast[]>([]);
let next = 1;

export function toast(tone: Tone, text: string, link: { to: string; label: string } | null = null): void {
  const id = next++;
  toasts.value = [...toasts.value.slice(-3), { id, tone, text, link }];
  setTimeout(() => dismiss(id), tone === "red" ? 12_000 : 6_000);
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((each) => (
        <div key={each.id} class={`toast tone-${each.tone}`}>
          <span class="grow anywhere">
            {each.text} {each.link && <a href={href(each.link.to)}>{each.link.label}</a>}
          </span>
          <button type="button" class="button quiet icon small" aria-label="Dismiss" onClick={() => dismiss(each.id)}>
            <Icon name="close" size={12} />
          </button>
        </div>
      ))}
    </div>
  );
}
