/** Small parts that all pages use. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiProblem } from "../api/client";
import { now, nowFor, type Resource } from "../data";
import { absolute, duration, relative, secondsBetween, sentence, shortId } from "../format";
import { MAX_LENGTHS } from "../limits";
import { navigate, query, setQuery } from "../router";
import { Icon, type IconName } from "./icons";
import type { Tone } from "./state";
import { toast } from "./toasts";

export function Time({ at, empty = "–" }: { at: string | null | undefined; empty?: string }) {
  if (!at) return <span class="muted">{empty}</span>;
  return (
    <time dateTime={at} title={absolute(at)} class="nowrap">
      {relative(at, nowFor(at))}
    </time>
  );
}

/** How long something took, or has taken so far. */
export function Elapsed({ from, to }: { from: string | null | undefined; to: string | null | undefined }) {
  if (!from) return <span class="muted">–</span>;
  if (to) return <>{duration(secondsBetween(from, to, 0))}</>;
  return <span class="nowrap">{duration(Math.max(0, Math.round(secondsBetween(from, null, now.value))))}</span>;
}

export async function copyText(text: string, noun: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast("green", `${noun} copied`);
  } catch {
    toast("amber", `The browser does not allow copying. ${noun}: ${text}`);
  }
}

/** `plain` is for rows of long lists, in which each element costs time. */
export function CopyId({ id, noun = "Id", plain = false }: { id: string; noun?: string; plain?: boolean }) {
  return (
    <button
      type="button"
      class={`button quiet small mono${plain ? " plain" : ""}`}
      title={`Copy ${id}`}
      aria-label={`Copy ${noun} ${shortId(id)}`}
      onClick={() => copyText(id, noun)}
    >
      {shortId(id)}
      {!plain && <Icon name="copy" size={12} />}
    </button>
  );
}

export function Card(props: {
  title?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  flush?: boolean;
  class?: string;
}) {
  const id = useId();
  return (
    <section class={`card ${props.class ?? ""}`} aria-labelledby={props.title ? id : undefined}>
      {props.title && (
        <header>
          <h2 id={id}>{props.title}</h2>
          {props.actions && <div class="actions">{props.actions}</div>}
        </header>
      )}
      {props.flush ? props.children : <div class="body">{props.children}</div>}
    </section>
  );
}

export function Facts({ items }: { items: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {items.map(([name, value]) => [<dt key={`${name}-name`}>{name}</dt>, <dd key={name}>{value ?? "–"}</dd>])}
    </dl>
  );
}

export function Banner(props: { tone: Tone; icon?: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class={`banner ${props.tone}`} role={props.tone === "red" ? "alert" : "status"}>
      <Icon name={props.icon ?? (props.tone === "green" ? "check" : props.tone === "blue" ? "info" : "warning")} />
      <div class="stack tighter grow">
        <strong class="anywhere">{props.title}</strong>
        {props.children}
      </div>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Skeleton({ lines = 6, height = 20 }: { lines?: number; height?: number }) {
  return (
    <div class="stack tight" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, line) => (
        <div key={line} class="skeleton" style={{ height: `${height}px`, width: `${100 - ((line * 17) % 35)}%` }} />
      ))}
    </div>
  );
}

/** Replaces the message of the server about an outdated ETag, which is for programs. */
const CHANGED_MEANWHILE = {
  title: "This has changed since you opened it: someone else may have decided already.",
  hint: "Your decision was not saved. Close this dialog, check the current state, and decide again.",
};

export function ProblemView({ problem, onRetry }: { problem: Error; onRetry?: () => void }) {
  const details = problem instanceof ApiProblem ? problem : null;
  const isOutdated = details?.status === 412;
  const title = isOutdated ? CHANGED_MEANWHILE.title : details ? details.detail || details.title : problem.message;
  const hint = isOutdated ? CHANGED_MEANWHILE.hint : details?.hint;
  return (
    <Banner tone="red" title={sentence(title)}>
      {hint && <p>{sentence(hint)}</p>}
      {details && details.errors.length > 0 && (
        <ul>
          {details.errors.map((error, place) => (
            <li key={place}>
              {error.at && <code>{error.at}</code>} {error.message}
            </li>
          ))}
        </ul>
      )}
      <div class="row wrap muted">
        {details && <code>{details.code}</code>}
        {details?.requestId && <span>Request {details.requestId}</span>}
        {onRetry && (
          <button type="button" class="button small" onClick={onRetry}>
            <Icon name="refresh" size={13} /> Try again
          </button>
        )}
      </div>
    </Banner>
  );
}

/** Shows the data of a resource: a skeleton until it is loaded, and the problem if it cannot be loaded. */
export function Loaded<T>(props: {
  resource: Resource<T>;
  lines?: number;
  children: (data: T) => ComponentChildren;
}): JSX.Element {
  const { data, problem, reload } = props.resource;
  if (data === null && problem) return <ProblemView problem={problem} onRetry={reload} />;
  if (data === null) return <Skeleton lines={props.lines ?? 6} />;
  return (
    <>
      {problem && !problem.isConnectionLoss && <ProblemView problem={problem} onRetry={reload} />}
      {props.children(data)}
    </>
  );
}

export interface Tab {
  id: string;
  label: ComponentChildren;
  content: () => ComponentChildren;
}

/** Tabs; the selected one is a query parameter of the URL. */
export function Tabs({ tabs, name = "tab", label }: { tabs: Tab[]; name?: string; label: string }) {
  const selectedId = query.value.get(name);
  const chosen = tabs.find((tab) => tab.id === selectedId) ?? tabs[0];
  const prefix = useId();
  const list = useRef<HTMLDivElement>(null);
  // Narrow screens show only some of the tabs: scroll to the selected one.
  useLayoutEffect(() => {
    const tab = list.current?.querySelector<HTMLElement>("[aria-selected=true]");
    if (list.current && tab)
      list.current.scrollLeft = tab.offsetLeft - (list.current.clientWidth - tab.offsetWidth) / 2;
  }, [chosen?.id]);
  const choose = (id: string) => setQuery({ [name]: id === tabs[0]?.id ? null : id });
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step || !chosen) return;
    event.preventDefault();
    const next = tabs[(tabs.indexOf(chosen) + step + tabs.length) % tabs.length];
    if (!next) return;
    choose(next.id);
    document.getElementById(`${prefix}-${next.id}`)?.focus();
  };
  return (
    <div class="stack">
      <div ref={list} class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${prefix}-${tab.id}`}
            aria-selected={tab === chosen}
            aria-controls={`${prefix}-panel`}
            tabIndex={tab === chosen ? 0 : -1}
            onClick={() => choose(tab.id)}
          >
            {tab.label}
          </button>
        ))}
      </div>
      <div id={`${prefix}-panel`} role="tabpanel" aria-labelledby={`${prefix}-${chosen?.id}`}>
        {chosen?.content()}
      </div>
    </div>
  );
}

/** A dialog of the browser: it keeps the focus inside, and Escape closes it. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const previousFocus = document.activeElement as HTMLElement | null;
    ref.current?.showModal();
    // The first field gets the focus, not the button that closes the dialog.
    ref.current?.querySelector<HTMLElement>("textarea, select, input:not([type=checkbox])")?.focus();
    return () => previousFocus?.focus?.();
  }, []);
  return (
    <dialog
      ref={ref}
      class="dialog"
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      style={props.wide ? { width: "min(860px, calc(100vw - 24px))" } : undefined}
    >
      <div>
        <div class="row spread">
          <h2 id={id}>{props.title}</h2>
          <button type="button" class="button quiet icon small" aria-label="Close" onClick={props.onClose}>
            <Icon name="close" />
          </button>
        </div>
        {props.children}
      </div>
    </dialog>
  );
}

/** Asks for confirmation of a change and, if the caller sets it, for its reason. Shows the problem if the change is refused. */
export function Confirm(props: {
  title: string;
  action: string;
  isDanger?: boolean;
  children?: ComponentChildren;
  needsReason?: boolean;
  offersReason?: boolean;
  maxReasonLength?: number;
  /** False if `onConfirm` closes the dialog itself. */
  closesWhenDone?: boolean;
  onConfirm: (reason: string) => Promise<void>;
  /** Called if the change was refused because the ETag is outdated: the page behind the dialog loads its data again. */
  onOutdated?: () => void;
  onClose: () => void;
}) {
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  const id = useId();
  const submit = async (event: Event) => {
    event.preventDefault();
    if (props.needsReason && !reason.trim()) return;
    setBusy(true);
    setProblem(null);
    try {
      await props.onConfirm(reason.trim());
      if (props.closesWhenDone ?? true) props.onClose();
    } catch (error) {
      setProblem(error as Error);
      if (error instanceof ApiProblem && error.status === 412) props.onOutdated?.();
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={submit} class="stack">
        {props.children}
        {(props.needsReason || props.offersReason) && (
          <div class="field">
            <label for={id}>Reason{props.needsReason ? "" : " (optional)"}</label>
            <textarea
              id={id}
              class="input"
              rows={2}
              maxLength={props.maxReasonLength ?? MAX_LENGTHS.reason}
              required={props.needsReason}
              value={reason}
              onInput={(event) => setReason(event.currentTarget.value)}
            />
            <span class="hint">The reason is recorded.</span>
          </div>
        )}
        {problem && <ProblemView problem={problem} />}
        <div class="buttons">
          <button type="button" class="button" onClick={props.onClose}>
            Back
          </button>
          <button type="submit" class={`button primary${props.isDanger ? " danger" : ""}`} disabled={isBusy}>
            {isBusy && <Icon name="running" spins size={13} />}
            {props.action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function Drawer(props: { title: ComponentChildren; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLElement>(null);
  const id = useId();
  useEffect(() => {
    const previousFocus = document.activeElement as HTMLElement | null;
    ref.current?.focus();
    const close = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) props.onClose();
    };
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("keydown", close);
      previousFocus?.focus?.();
    };
  }, []);
  return (
    <aside ref={ref} class="drawer" tabIndex={-1} aria-labelledby={id}>
      <header>
        <h2 id={id} class="grow ellipsis">
          {props.title}
        </h2>
        <button type="button" class="button quiet icon" aria-label="Close" onClick={props.onClose}>
          <Icon name="close" />
        </button>
      </header>
      <div class="body">{props.children}</div>
    </aside>
  );
}

export interface Part {
  name: string;
  count: number;
  tone: Tone;
}

/** A bar of parts, with the counts as its text alternative. */
export function Meter({ parts, total }: { parts: Part[]; total: number }) {
  const shown = parts.filter((part) => part.count > 0);
  const label = shown.map((part) => `${part.count} ${part.name}`).join(", ") || "no progress yet";
  return (
    <div class="meter" role="img" aria-label={label} title={label}>
      {shown.map((part) => (
        <span
          key={part.name}
          class={`tone-${part.tone} fill`}
          style={{ width: `${(100 * part.count) / Math.max(1, total)}%` }}
        />
      ))}
    </div>
  );
}

/** Preformatted text in a box of limited height; the keyboard can scroll it too. */
export function ScrollableText(props: { label: string; class: string; children: ComponentChildren }) {
  return (
    <pre class={`mono ${props.class}`} role="region" aria-label={props.label} tabIndex={0}>
      {props.children}
    </pre>
  );
}

export function Json({ value, empty = "none" }: { value: unknown; empty?: string }) {
  if (value === null || value === undefined) return <span class="muted">{empty}</span>;
  const text = JSON.stringify(value, null, 2);
  return (
    <div class="stack tighter">
      <pre class="mono">{text.length > 60_000 ? `${text.slice(0, 60_000)}\n…` : text}</pre>
      <div>
        <button type="button" class="button quiet small" onClick={() => copyText(text, "JSON")}>
          <Icon name="copy" size={12} /> Copy
        </button>
      </div>
    </div>
  );
}

export function SearchBox(props: { label: string; value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(props.value);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setText(props.value), [props.value]);
  return (
    <input
      type="search"
      class="input"
      aria-label={props.label}
      placeholder={props.label}
      value={text}
      maxLength={200}
      onInput={(event) => {
        const { value } = event.currentTarget;
        setText(value);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => props.onChange(value), 250);
      }}
    />
  );
}

/** For rows that open a page: a click anywhere in the row opens it. For the keyboard, the row contains a link. */
export function openRow(to: string) {
  return (event: MouseEvent) => {
    const target = event.target as Element;
    if (target.closest("a,button,input,label")) return;
    if (globalThis.getSelection()?.toString()) return;
    navigate(to);
  };
}
