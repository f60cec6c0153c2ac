/** What the page of API keys shows of a key, and what it accepts for a new one. */
import type { Schemas } from "./api/client";

const MAX_DAYS = 3650;

/** The scopes of a key, with the platform or the queues that it is limited to. */
export function scopesOf(key: Pick<Schemas["KeyInfo"], "scopes" | "platform_id" | "queues">): string {
  const platform = key.platform_id ? ` of ${key.platform_id}` : "";
  const queues = key.queues?.length ? ` on ${key.queues.join(", ")}` : "";
  return key.scopes.join(", ") + platform + queues;
}

/** The platform of a new key: only keys with the scope b2b have one. */
export function platformOf(scopes: readonly string[], text: string): string | null {
  return scopes.includes("b2b") ? text.trim() || null : null;
}

/** The number of days in a text; null if the text is empty: the key does not expire. */
export function expiryDaysOf(text: string): number | null {
  if (text.trim() === "") return null;
  const days = Number(text);
  // JSON has no NaN and no Infinity: the server would get null, and create a key that does not expire.
  if (!(days > 0 && days <= MAX_DAYS))
    throw new Error(`Enter a number of days up to ${MAX_DAYS}, or leave the field empty.`);
  return days;
}
