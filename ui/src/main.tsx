/** Starts the UI: loads the session, then shows the frame with the pages, or the sign-in page. */
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "./styles.css";
import { ProblemView, Skeleton } from "./components/basics";
import { Frame, startTheme } from "./frame";
import { startPalette } from "./palette";
import { path, startRouter } from "./router";
import { routeOf } from "./routes";
import { isSignedIn, loadSession, session } from "./session";
import { SignIn } from "./sign_in";

function App() {
  const [problem, setProblem] = useState<Error | null>(null);
  const load = () => {
    setProblem(null);
    loadSession().catch(setProblem);
  };
  useEffect(load, []);
  useEffect(() => {
    if (!problem) return;
    const timer = setTimeout(load, 3000);
    return () => clearTimeout(timer);
  }, [problem]);
  if (session.value === null)
    return <div class="page">{problem ? <ProblemView problem={problem} onRetry={load} /> : <Skeleton />}</div>;
  return isSignedIn.value ? <Frame /> : <SignIn />;
}

// The code of the page is loaded at the same time as the session: both are needed before a page can be shown.
routeOf(path.value)
  ?.route.load()
  .catch(() => {});
startTheme();
startRouter();
startPalette();
const root = document.getElementById("app");
if (root) render(<App />, root);
