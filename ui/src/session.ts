/** The session: who is signed in, and with which permissions. */
import { computed, signal } from "@preact/signals";
import { configure, csrfHeaders, fetchResponse, problemOf } from "./api/client";

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

/** Whether the session has ended without the user signing out. */
export const hasExpired = signal(false);

export function may(permission: string): boolean {
  return session.value?.permissions.includes(permission) ?? false;
}

export async function loadSession(): Promise<void> {
  // The headers are those of the preload in index.html: otherwise the browser would not use the preloaded response.
  const response = await fetchResponse(URL_OF_SESSION, {});
  if (!response.ok) throw await problemOf(response);
  setSession((await response.json()) as Session);
}

/** Check whether the session still exists: a stream that is refused gives no reason. */
export async function checkSession(): Promise<void> {
  const checked = session.value;
  const response = await fetchResponse(URL_OF_SESSION, {});
  if (response.ok && !((await response.json()) as Session).is_signed_in) expire(checked);
}

/** End this session. A late response to a request of an earlier session does not end the current one. */
function expire(ended: Session | null): void {
  if (ended !== session.value || !ended?.is_signed_in || !ended.is_authentication_enabled) return;
  hasExpired.value = true;
  session.value = { ...ended, is_signed_in: false, permissions: [] };
}

export async function signIn(key: string): Promise<void> {
  const response = await fetchResponse(URL_OF_SESSION, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json" },
    body: JSON.stringify({ key }),
  });
  if (!response.ok) throw await problemOf(response);
  setSession((await response.json()) as Session);
}

export async function signOut(): Promise<void> {
  const response = await fetchResponse(URL_OF_SESSION, { method: "DELETE", headers: csrfHeaders() });
  if (!response.ok && response.status !== 401) throw await problemOf(response);
  await loadSession();
}

function setSession(next: Session): void {
  session.value = next;
  hasExpired.value = false;
  configure(next.csrf_token, () => expire(next));
}
