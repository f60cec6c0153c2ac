/**
 * Requests to the API, typed by its OpenAPI document.
 *
 * An error response is thrown as an `ApiProblem` with the problem details of the server. Requests that change something
 * carry the CSRF token of the session.
 */
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Path = keyof paths & string;

type Json<T> = T extends { content: { "application/json": infer Body } } ? Body : never;
type Success<T> = T extends { responses: infer R }
  ? { [S in keyof R]: S extends 200 | 201 | 202 ? Json<R[S]> : never }[keyof R]
  : never;
type Method = "get" | "post" | "put" | "patch" | "delete";
type WithMethod<M extends Method> = {
  [P in Path]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[Path];
export type ResponseOf<M extends Method, P extends Path> = paths[P] extends Record<M, infer O> ? Success<O> : never;
type QueryOf<M extends Method, P extends Path> =
  paths[P] extends Record<M, { parameters: { query?: infer Q } }> ? Q : never;
type BodyOf<M extends Method, P extends Path> =
  paths[P] extends Record<M, { requestBody?: { content: { "application/json": infer B } } }> ? B : never;

export interface RequestOptions<M extends Method, P extends Path> {
  path?: Record<string, string | number>;
  query?: QueryOf<M, P>;
  body?: BodyOf<M, P>;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

export interface FieldMistake {
  message: string;
  at?: string | null;
  line?: number | null;
  column?: number | null;
}

/** A request that failed. `status` is the HTTP status, or 0 if there was no response. */
export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly code: string,
    readonly hint: string | null = null,
    readonly facts: Record<string, unknown> = {},
    readonly errors: FieldMistake[] = [],
    readonly requestId: string | null = null,
  ) {
    super(detail || title);
  }

  get isConnectionLoss(): boolean {
    return this.status === 0;
  }
}

/** Whether the platform could not be reached. Views load their data again when the connection is back. */
export function isConnectionLoss(problem: Error | null): boolean {
  return problem instanceof ApiProblem && problem.isConnectionLoss;
}

let csrfToken: string | null = null;
let onSignedOut: () => void = () => {};

/** Called by `session`: sets the CSRF token of the current session, and the function that is called after a 401. */
export function configure(token: string | null, signedOut: () => void): void {
  csrfToken = token;
  onSignedOut = signedOut;
}

export function csrfHeaders(): Record<string, string> {
  return csrfToken ? { "X-CSRF-Token": csrfToken } : {};
}

export function urlOf(template: string, path: Record<string, string | number> = {}, query: object = {}): string {
  const filled = template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(path[name] ?? "")));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== undefined && item !== null && item !== "") search.append(name, String(item));
    }
  }
  const text = search.toString();
  return text ? `${filled}?${text}` : filled;
}

async function send<M extends Method, P extends Path>(
  method: M,
  template: P,
  options: RequestOptions<M, P> = {},
): Promise<{ data: ResponseOf<M, P>; etag: string | null }> {
  const headers: Record<string, string> = { Accept: "application/json", ...options.headers };
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "get") Object.assign(headers, csrfHeaders());
  const response = await fetchResponse(urlOf(template, options.path, options.query ?? {}), {
    method: method.toUpperCase(),
    headers,
    body: options.body === undefined ? null : JSON.stringify(options.body),
    signal: options.signal ?? null,
    credentials: "same-origin",
  });
  if (!response.ok) throw await problemOf(response);
  const text = await response.text();
  return { data: (text ? JSON.parse(text) : null) as ResponseOf<M, P>, etag: response.headers.get("ETag") };
}

export async function fetchResponse(url: string, init: RequestInit): Promise<Response> {
  const onRefused = onSignedOut; // another session may have started when the response arrives
  try {
    const response = await fetch(url, init);
    if (response.status === 401) onRefused();
    return response;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiProblem(
      0,
      "No connection",
      "The platform does not respond.",
      "ui.no-connection",
      (init.method ?? "GET") === "GET" ? "The page tries again automatically." : "Check the connection, and try again.",
    );
  }
}

export async function problemOf(response: Response): Promise<ApiProblem> {
  const text = await response.text();
  let body: Partial<Schemas["ProblemDetails"]> = {};
  try {
    body = JSON.parse(text) as Partial<Schemas["ProblemDetails"]>;
  } catch {
    body = {};
  }
  return new ApiProblem(
    response.status,
    body.title ?? `HTTP ${response.status}`,
    body.detail ?? response.statusText,
    body.code ?? `http.${response.status}`,
    body.hint ?? null,
    body.facts ?? {},
    (body.errors as FieldMistake[] | undefined) ?? [],
    body.request_id ?? response.headers.get("X-Request-ID"),
  );
}

export const api = {
  async get<P extends WithMethod<"get">>(path: P, options?: RequestOptions<"get", P>): Promise<ResponseOf<"get", P>> {
    return (await send("get", path, options)).data;
  },
  async post<P extends WithMethod<"post">>(
    path: P,
    options?: RequestOptions<"post", P>,
  ): Promise<ResponseOf<"post", P>> {
    return (await send("post", path, options)).data;
  },
  async put<P extends WithMethod<"put">>(path: P, options?: RequestOptions<"put", P>): Promise<ResponseOf<"put", P>> {
    return (await send("put", path, options)).data;
  },
  async patch<P extends WithMethod<"patch">>(
    path: P,
    options?: RequestOptions<"patch", P>,
  ): Promise<ResponseOf<"patch", P>> {
    return (await send("patch", path, options)).data;
  },
  async delete<P extends WithMethod<"delete">>(
    path: P,
    options?: RequestOptions<"delete", P>,
  ): Promise<ResponseOf<"delete", P>> {
    return (await send("delete", path, options)).data;
  },
};
