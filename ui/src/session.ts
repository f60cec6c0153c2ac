/** Who uses the pages, and what they may do. */
import { computed, signal } from "@preact/signals";
import { configure, csrfHeaders, fetched, problemOf } from "./api/client";

export interface Session {
  is_signed_in: boolean;
  is_authentication_enabled: boolean;
  name: string | null;
  scopes: string[];
  permissions: string[];
  platform_id: string | null;
  expires_at: string | null;
  csrf_token: string | null;
  method: "key" | "oidc" | "header" | null;
  sign_in_methods: { method: "key" | "oidc"; url: string }[];
}

const URL_OF_SESSION = "/api/v1/session";

export const session = signal<Session | null>(null);
export const isSignedIn = computed(() => session.value?.is_signed_in ?? false);

/** Whether the session has ended by itself, not by signing out. */
export const hasExpired = signal(false);

export function may(permission: string): boolean {
  return session.value?.permissions.includes(permission) ?? false;
}

export async function loadSession(): Promise<void> {
  // With the same headers as the document's preload: it is then loaded together with the script.
  const response = await fetched(URL_OF_SESSION, {});
  if (!response.ok) throw await problemOf(response);
  use((await response.json()) as Session);
}

/** Whether the session still exists: a stream that is refused does not say why. */
export async function checkSession(): Promise<void> {
  const checked = session.value;
  const response = await fetched(URL_OF_SESSION, {});
  if (response.ok && !((await response.json()) as Session).is_signed_in) expire(checked);
}

/** End this session. A late response to a request of an earlier session does not end the present one. */
function expire(ended: Session | null): void {
  if (ended !== session.value || !ended?.is_signed_in || !ended.is_authentication_enabled) return;
  hasExpired.value = true;
  session.value = { ...ended, is_signed_in: false, permissions: [] };
}

export async function signIn(key: string): Promise<void> {
  const response = await fetched(URL_OF_SESSION, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json" },
    body: JSON.stringify({ key }),
  });
  if (!response.ok) throw await problemOf(response);
  use((await response.json()) as Session);
}

export async function signOut(): Promise<void> {
  const response = await fetched(URL_OF_SESSION, { method: "DELETE", headers: csrfHeaders() });
  if (!response.ok && response.status !== 401) throw await problemOf(response);
  await loadSession();
}

function use(next: Session): void {
  session.value = next;
  hasExpired.value = false;
  configure(next.csrf_token, () => expire(next));
}
