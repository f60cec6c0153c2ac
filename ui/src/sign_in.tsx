/** Sign in with an API key or, if the platform has one, with an OIDC provider. */
import { useId, useState } from "preact/hooks";
import { Banner, ProblemView } from "./components/basics";
import { Icon } from "./components/icons";
import { words } from "./format";
import { query } from "./router";
import { hasExpired, session, signIn } from "./session";

export function SignIn() {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  const id = useId();
  const oidc = session.value?.sign_in_methods.find((each) => each.method === "oidc");
  const refused = query.value.get("sign_in_error");
  const next = `${globalThis.location.pathname}${globalThis.location.search}`;
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await signIn(key.trim());
    } catch (error) {
      setProblem(error as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <div class="card">
        <div class="body stack">
          <div class="row">
            <img src="/ui/icon.svg" width="28" height="28" alt="" />
            <h1>Sign in to dagmaster</h1>
          </div>
          {hasExpired.value && !problem && (
            <Banner
              tone="amber"
              icon="lock"
              title="Your session has ended. Sign in again to continue where you were."
            />
          )}
          {refused && !problem && (
            <Banner tone="red" title="Sign-in failed">
              <p>{REFUSALS[refused] ?? words(refused)}</p>
            </Banner>
          )}
          {oidc && (
            <a class="button primary" href={`${oidc.url}?next=${encodeURIComponent(refused ? "/ui/" : next)}`}>
              <Icon name="user" /> Sign in with your organisation
            </a>
          )}
          <form class="stack" onSubmit={submit}>
            <div class="field">
              <label for={id}>API key</label>
              <input
                id={id}
                class="input mono"
                type="password"
                autocomplete="current-password"
                required
                value={key}
                onInput={(event) => setKey(event.currentTarget.value)}
              />
              <span class="hint">
                An administrator creates one with <code>dagmaster keys create</code>.
              </span>
            </div>
            {problem && <ProblemView problem={problem} />}
            <button type="submit" class={`button${oidc ? "" : " primary"}`} disabled={isBusy || !key.trim()}>
              Sign in with a key
            </button>
          </form>
        </div>
      </div>
    </main>
  );
}

const REFUSALS: Record<string, string> = {
  "session.bad-state": "The sign-in was started in another window, or took too long. Start it again.",
  "session.refused": "Your organisation's sign-in page refused the sign-in.",
  "session.no-roles": "Your account has no role on this platform. Ask an administrator.",
  "auth.issuer-unavailable": "Your organisation's sign-in service does not respond. Try again later.",
};
