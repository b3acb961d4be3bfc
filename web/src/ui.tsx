// The pieces that pages are made of.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ago } from "./format.ts";
import type { Asked, Refusal } from "./hub.ts";
import { Icon } from "./icons.tsx";
import { now } from "./session.ts";

const WORDS: Record<string, string> = {
  worker_failed: "worker failed",
  unschedulable: "fits nowhere",
};

export function State({ of, held = false }: { of: string; held?: boolean }) {
  const name = held && of === "pending" ? "held" : of;
  return (
    <span class={`state state-${name}`}>
      <Icon name={name} /> {WORDS[name] ?? name}
    </span>
  );
}

// The sentence that answers the page's question.
export function Lead({ children }: { children: ComponentChildren }) {
  return (
    <p class="lead" aria-live="polite">
      {children}
    </p>
  );
}

export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <span class="faint">–</span>;
  return (
    <time dateTime={at} title={new Date(at).toLocaleString()}>
      {ago(at, now())}
    </time>
  );
}

export function Fault({ of }: { of: Refusal }) {
  return (
    <div class="fault" role="alert">
      <Icon name="offline" /> {of.message}
    </div>
  );
}

// What is shown of something asked: nothing yet, what went wrong, or all of it.
export function Shown<T>({ of, children }: { of: Asked<T>; children: (found: T) => ComponentChildren }) {
  if (of.found === null) return of.fault ? <Fault of={of.fault} /> : <p class="faint">Asking the hub …</p>;
  return <>{children(of.found)}</>;
}

export function Empty({ children, command }: { children: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <p>{children}</p>
      {command ? <Command text={command} /> : null}
    </div>
  );
}

export function Command({ text }: { text: string }) {
  const said = useSignal("Copy");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.value = "Copied";
    } catch {
      said.value = "Select it";
    }
    window.setTimeout(() => {
      said.value = "Copy";
    }, 2000);
  };
  return (
    <div class="command">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what may scroll sideways must be reached by keys */}
      <code tabIndex={0}>{text}</code>
      <button type="button" class="plain" onClick={copy}>
        {said}
      </button>
    </div>
  );
}

export function Card({
  title,
  children,
  aside,
}: {
  title: string;
  children: ComponentChildren;
  aside?: ComponentChildren;
}) {
  return (
    <section class="card">
      <h2>
        {title}
        {aside ? <span class="aside">{aside}</span> : null}
      </h2>
      {children}
    </section>
  );
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows
        .filter(([, value]) => value !== "" && value !== null && value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export type Column<Row> = {
  name: string;
  of: (row: Row) => ComponentChildren;
  // Numbers stand at the right; on a phone a row is a card of its cells, with these names.
  right?: boolean;
  wide?: boolean;
};

export function Table<Row>(props: {
  caption: string;
  columns: Column<Row>[];
  rows: Row[] | undefined;
  id: (row: Row) => string;
  link?: (row: Row) => string;
}) {
  return (
    <table class="rows">
      <caption class="unseen">{props.caption}</caption>
      <thead>
        <tr>
          {props.columns.map((column) => (
            <th key={column.name} scope="col" class={column.right ? "right" : ""}>
              {column.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {(props.rows ?? []).map((row) => (
          <tr key={props.id(row)} data-row={props.link?.(row)}>
            {props.columns.map((column) => (
              <td
                key={column.name}
                data-name={column.name}
                class={`${column.right ? "right " : ""}${column.wide ? "wide" : ""}`}
              >
                {column.of(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// A share of a whole, as a bar that also says it.
export function Bar({ part = 0, whole, label }: { part: number | undefined; whole: number; label: string }) {
  return (
    <span class="bar">
      <meter min={0} max={Math.max(whole, 1)} value={part} aria-label={label} />
      <span>{label}</span>
    </span>
  );
}

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return (
    <dialog ref={box} aria-label={props.title} onClose={props.onClose} onCancel={props.onClose}>
      <header>
        <h2>{props.title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick={props.onClose}>
          <Icon name="close" />
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

export function Tabs({
  of,
  chosen,
  to,
}: {
  of: [string, string][];
  chosen: string;
  to: (id: string) => string;
}) {
  return (
    <nav class="tabs" aria-label="Parts of this page">
      {of.map(([id, name]) => (
        <a key={id} href={to(id)} aria-current={id === chosen ? "page" : undefined}>
          {name}
        </a>
      ))}
    </nav>
  );
}

export function Pick<T extends string>(props: {
  label: string;
  of: readonly (readonly [T, string])[];
  chosen: string;
  onPick: (to: T) => void;
}) {
  return (
    <label class="pick">
      {props.label}{" "}
      <select value={props.chosen} onChange={(event) => props.onPick(event.currentTarget.value as T)}>
        {props.of.map(([id, name]) => (
          <option key={id} value={id}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
