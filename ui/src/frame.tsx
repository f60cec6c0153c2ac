/** The frame around every page: navigation, search, the state of the connection, and the user who is signed in. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { api } from "./api/client";
import { ProblemView, Skeleton } from "./components/basics";
import { Icon, type IconName } from "./components/icons";
import { Toasts, toast } from "./components/toasts";
import { now, stored, useResource } from "./data";
import { duration, number } from "./format";
import { connect, connection, disconnect, failures, lostSince, retryNow } from "./live";
import { isPaletteOpen, Palette } from "./palette";
import { href, navigate, path } from "./router";
import { type Page, routeOf } from "./routes";
import { checkSession, may, session, signOut } from "./session";

const SECTIONS: { name: string; label: string; to: string; icon: IconName; permission: string }[] = [
  { name: "jobs", label: "Jobs", to: "/jobs", icon: "jobs", permission: "jobs:read" },
  { name: "assets", label: "Assets", to: "/assets", icon: "assets", permission: "assets:read" },
  { name: "review", label: "Review", to: "/review", icon: "review", permission: "assets:review" },
  { name: "submit", label: "Submit", to: "/submit", icon: "submit", permission: "assets:submit" },
  { name: "workflows", label: "Workflows", to: "/workflows", icon: "workflows", permission: "workflows:read" },
  { name: "system", label: "System", to: "/system", icon: "system", permission: "jobs:read" },
];

/** The path of the start page: the first section that the user may see. */
function home(): string {
  return SECTIONS.find((each) => may(each.permission))?.to ?? "/jobs";
}

export const theme = stored("theme", "system");

/** The pages above the current page, and its title. */
export const crumbs = signal<{ label: string; to?: string }[]>([]);

export function useTitle(title: string, above: { label: string; to: string }[] = []): void {
  useEffect(() => {
    document.title = `${title} · dagmaster`;
    crumbs.value = [...above, { label: title }];
  }, [title, JSON.stringify(above)]);
}

export function startTheme(): void {
  const dark = globalThis.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const isDark = theme.value === "dark" || (theme.value === "system" && dark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  theme.subscribe(apply);
  dark.addEventListener("change", apply);
}

export function Frame() {
  const match = routeOf(path.value);
  const needed = SECTIONS.find((each) => each.name === match?.route.section)?.permission;
  useEffect(() => {
    connect();
    const stop = failures.subscribe((count) => {
      if (count > 0) checkSession().catch(() => {});
    });
    return () => {
      stop();
      disconnect();
    };
  }, []);
  useEffect(() => {
    if (path.value === "/") navigate(home(), { replace: true });
  }, [path.value]);
  return (
    <div class="frame">
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <Rail section={match?.route.section ?? ""} />
      <div>
        <TopBar />
        <ConnectionBanner />
        <main id="main" tabIndex={-1} class="page">
          {!match ? (
            <NotFound />
          ) : needed && !may(needed) ? (
            <NotAllowed permission={needed} />
          ) : (
            <PageOf key={match.route.pattern} path={path.value} />
          )}
        </main>
      </div>
      <Toasts />
      {isPaletteOpen.value && <Palette />}
    </div>
  );
}

function Rail({ section }: { section: string }) {
  const canReview = may("assets:review");
  const waiting = useResource("to-review", (signal) => api.get("/api/v1/reviews", { query: { limit: 1 }, signal }), {
    isAffectedBy: (change) => change.kind === "asset",
    atMostEveryMs: 3000,
    enabled: canReview,
  });
  const count = waiting.data?.total ?? 0;
  return (
    <nav class="rail" aria-label="Sections">
      <a class="brand" href={href(home())}>
        <img src="/ui/icon.svg" width="24" height="24" alt="" />
        dagmaster
      </a>
      {SECTIONS.filter((each) => may(each.permission)).map((each) => (
        <a key={each.name} class="item" href={href(each.to)} aria-current={section === each.name ? "page" : undefined}>
          <Icon name={each.icon} />
          {each.label}
          {each.name === "review" && count > 0 && (
            <span class="count">
              {number(count)}
              {waiting.data?.is_exact === false && "+"}
              <span class="visually-hidden"> to review</span>
            </span>
          )}
        </a>
      ))}
      <div class="foot stack tight">
        <a class="muted" href="/docs">
          API
        </a>
      </div>
    </nav>
  );
}

function TopBar() {
  return (
    <div class="topbar">
      <nav class="crumbs grow" aria-label="Breadcrumbs">
        {crumbs.value.map((crumb, place) => (
          <span key={place} class="row ellipsis" aria-current={crumb.to ? undefined : "page"}>
            {place > 0 && <Icon name="chevron" size={12} />}
            {crumb.to ? <a href={href(crumb.to)}>{crumb.label}</a> : <span class="ellipsis">{crumb.label}</span>}
          </span>
        ))}
      </nav>
      <button
        type="button"
        class="button"
        onClick={() => {
          isPaletteOpen.value = true;
        }}
      >
        <Icon name="search" /> <span class="hide-narrow">Search</span> <kbd class="hide-narrow">Ctrl K</kbd>
        <span class="visually-hidden">Search</span>
      </button>
      <ThemeButton />
      <UserMenu />
    </div>
  );
}

function ThemeButton() {
  const isDark = document.documentElement.dataset.theme === "dark";
  const [, render] = useState(0);
  return (
    <button
      type="button"
      class="button quiet icon"
      aria-label={isDark ? "Use the light theme" : "Use the dark theme"}
      onClick={() => {
        theme.value = isDark ? "light" : "dark";
        render((count) => count + 1);
      }}
    >
      <Icon name={isDark ? "sun" : "moon"} />
    </button>
  );
}

function UserMenu() {
  const who = session.value;
  if (!who) return null;
  if (!who.is_authentication_enabled)
    return (
      <span class="muted nowrap hide-narrow" title="Authentication is disabled: every caller is an administrator">
        <Icon name="user" /> local administrator
      </span>
    );
  return (
    <div class="row">
      <span class="muted nowrap hide-narrow" title={`Scopes: ${who.scopes.join(", ")}`}>
        <Icon name="user" /> {who.name}
      </span>
      <button
        type="button"
        class="button small"
        onClick={() => signOut().catch((problem: Error) => toast("red", problem.message))}
      >
        Sign out
      </button>
    </div>
  );
}

function ConnectionBanner() {
  if (connection.value !== "lost" || lostSince.value === null) return null;
  const seconds = (now.value - lostSince.value) / 1000;
  if (seconds < 2) return null;
  return (
    <div class="banner amber connection" role="status">
      <Icon name="warning" />
      <span class="grow">
        The connection to the platform was lost {duration(Math.round(seconds))} ago. This page may be out of date. It
        reconnects automatically.
      </span>
      <button type="button" class="button small" onClick={retryNow}>
        Try now
      </button>
    </div>
  );
}

function PageOf({ path: actual }: { path: string }) {
  const [page, setPage] = useState<Page | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const match = routeOf(actual);
  useEffect(() => {
    match?.route.load().then(
      (module) => setPage(() => module.default),
      () => setProblem(new Error("This page could not be loaded. The platform may have been updated. Try again.")),
    );
  }, []);
  if (problem) return <ProblemView problem={problem} onRetry={() => globalThis.location.reload()} />;
  if (!page || !match) return <Skeleton />;
  const Content = page;
  return <Content key={JSON.stringify(match.params)} params={match.params} />;
}

function NotFound() {
  useTitle("Not found");
  return (
    <Message title="There is no such page">
      <p>
        The address may be mistyped. <a href={href(home())}>Go to the start page</a>
      </p>
    </Message>
  );
}

function NotAllowed({ permission }: { permission: string }) {
  useTitle("Not allowed");
  return (
    <Message title="You do not have access to this page">
      <p>
        Your key or role does not have the permission <code>{permission}</code>. An administrator can grant it.{" "}
        <a href={href(home())}>Go to the start page</a>
      </p>
    </Message>
  );
}

function Message({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="empty">
      <h1>{title}</h1>
      {children}
    </div>
  );
}
