import { afterEach, beforeEach, expect, test, vi } from "vitest";

/** Requests that wait until the test responds. */
const waiting: { url: string; method: string; respond: (response: Response) => Promise<void> }[] = [];

const signedIn = { is_signed_in: true, is_authentication_enabled: true, permissions: ["jobs:read"], csrf_token: "t" };
const signedOut = { is_signed_in: false, is_authentication_enabled: true, permissions: [], csrf_token: null };
const json = (body: object, status = 200) => new Response(JSON.stringify(body), { status });

beforeEach(() => {
  waiting.length = 0;
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    return new Promise<Response>((resolve) => {
      const respond = async (response: Response) => {
        resolve(response);
        await new Promise((done) => setTimeout(done));
      };
      waiting.push({ url, method: init.method ?? "GET", respond });
    });
  });
});

afterEach(() => vi.unstubAllGlobals());

/** The modules, loaded again, with a user who is signed in. */
async function reloaded() {
  vi.resetModules();
  const session = await import("../src/session");
  const { api } = await import("../src/api/client");
  const loaded = session.loadSession();
  await waiting.pop()?.respond(json(signedIn));
  await loaded;
  return { session, api };
}

async function signInAgain(session: Awaited<ReturnType<typeof reloaded>>["session"]) {
  const done = session.signIn("key");
  await waiting.pop()?.respond(json(signedIn));
  await done;
}

test("a response with status 401 ends the session", async () => {
  const { session, api } = await reloaded();
  const loaded = api.get("/api/v1/jobs").catch(() => {});
  await waiting.pop()?.respond(json({}, 401));
  await loaded;

  expect(session.isSignedIn.value).toBe(false);
  expect(session.hasExpired.value).toBe(true);
  expect(session.may("jobs:read")).toBe(false);
});

test("a check that finds no session on the server ends the session of the page", async () => {
  const { session } = await reloaded();
  session.checkSession();
  await waiting.pop()?.respond(json(signedOut));

  expect(session.hasExpired.value).toBe(true);
});

test("late responses to requests of an earlier session do not end the current one", async () => {
  const { session, api } = await reloaded();
  session.checkSession();
  const refused = api.get("/api/v1/jobs").catch(() => {});
  const [check, jobs] = waiting.splice(0);
  session.checkSession();
  await waiting.pop()?.respond(json(signedOut));
  await signInAgain(session);

  await check?.respond(json(signedOut));
  await jobs?.respond(json({}, 401));
  await refused;

  expect(session.isSignedIn.value).toBe(true);
  expect(session.hasExpired.value).toBe(false);
});

test("signing in with a wrong key is not shown as a session that has ended", async () => {
  const { session } = await reloaded();
  const out = session.signOut();
  await waiting.pop()?.respond(new Response(null, { status: 204 }));
  await waiting.pop()?.respond(json(signedOut));
  await out;

  const refused = expect(session.signIn("wrong")).rejects.toThrow("Not authenticated");
  await waiting.pop()?.respond(json({ title: "Not authenticated", code: "auth.unknown-key" }, 401));
  await refused;
  expect(session.hasExpired.value).toBe(false);
});
