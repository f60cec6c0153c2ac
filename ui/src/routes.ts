/** Which page belongs to which path. Pages are loaded when they are opened. */
import type { ComponentType } from "preact";
import { match, type Params } from "./router";

export type PageProps = { params: Params };
export type Page = ComponentType<PageProps>;

interface Route {
  pattern: string;
  section: string;
  load: () => Promise<{ default: Page }>;
}

export const ROUTES: Route[] = [
  { pattern: "/", section: "", load: () => Promise.resolve({ default: () => null }) },
  { pattern: "/jobs", section: "jobs", load: () => import("./pages/jobs") },
  { pattern: "/jobs/:job", section: "jobs", load: () => import("./pages/job") },
  { pattern: "/assets", section: "assets", load: () => import("./pages/assets") },
  { pattern: "/assets/:asset", section: "assets", load: () => import("./pages/asset") },
  { pattern: "/assets/:asset/compare", section: "assets", load: () => import("./pages/compare") },
  { pattern: "/review", section: "review", load: () => import("./pages/review") },
  { pattern: "/submit", section: "submit", load: () => import("./pages/submit") },
  { pattern: "/workflows", section: "workflows", load: () => import("./pages/workflows") },
  { pattern: "/workflows/:workflow", section: "workflows", load: () => import("./pages/workflow") },
  { pattern: "/system", section: "system", load: () => import("./pages/system") },
];

export function routeOf(path: string): { route: Route; params: Params } | null {
  for (const route of ROUTES) {
    const params = match(route.pattern, path);
    if (params) return { route, params };
  }
  return null;
}
