// Asking the hub: one way for all calls, and resources that stay right while the page shows them.
import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { ErrorBody, SessionDocument } from "./api.d.ts";
import { forget, half, learn, who } from "./session.ts";

export class Refusal extends Error {
  status: number;
  body: ErrorBody;
  constructor(status: number, body: ErrorBody) {
    super(body.message);
    this.status = status;
    this.body = body;
  }
}

export type Given = {
  query?: Record<string, string | number | null | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
};

// "live" when the hub answered lately; how long it has been silent otherwise.
export const reach = signal<"live" | "lost">("live");
// Counts up when anything on a page may have changed.
export const turn = signal(0);

export function address(path: string, query: Given["query"] = {}): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") text.set(name, String(value));
  }
  const suffix = text.toString();
  return `/api/v1${path}${suffix ? `?${suffix}` : ""}`;
}

export async function raw(method: string, path: string, given: Given = {}): Promise<Response> {
  const headers: Record<string, string> = { "x-dray-session": half(), ...given.headers };
  if (given.body !== undefined) headers["content-type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(address(path, given.query), {
      method,
      headers,
      body: given.body === undefined ? undefined : JSON.stringify(given.body),
      signal: given.signal,
    });
  } catch (fault) {
    if (given.signal?.aborted) throw fault;
    reach.value = "lost";
    throw new Refusal(0, plain("unreachable", "the hub does not answer; this page tries again by itself"));
  }
  reach.value = answer.status === 503 ? "lost" : "live";
  if (answer.ok) return answer;
  const body = ((await answer.json().catch(() => null)) as { error?: ErrorBody } | null)?.error;
  if (answer.status === 401) forget();
  throw new Refusal(answer.status, body ?? plain("odd", `the hub answered ${answer.status}`));
}

export async function ask<T>(method: string, path: string, given: Given = {}): Promise<T> {
  return (await raw(method, path, given)).json() as Promise<T>;
}

function plain(code: string, message: string): ErrorBody {
  return { code, message, problems: [], leader: null, retry_after_s: null } as ErrorBody;
}

export type Asked<T> = { found: T | null; fault: Refusal | null; again: () => void };

const QUIET_MS = 5000;

// What a GET gives, asked again when the hub's turn moves on, and every few seconds. `path` null asks nothing.
export function useAsked<T>(path: string | null, query: Given["query"] = {}, everyMs = QUIET_MS): Asked<T> {
  const found = useSignal<T | null>(null);
  const fault = useSignal<Refusal | null>(null);
  const key = path === null ? "" : address(path, query);
  const again = useSignal(0);
  const last = useRef(path);
  useEffect(() => {
    // Another filter of the same thing shows the old rows until the new ones are there.
    if (last.current !== path) found.value = null;
    last.current = path;
    fault.value = null;
    if (path === null) return;
    return keep(path, query, everyMs, found, fault, again);
  }, [key, everyMs]);
  return { found: found.value, fault: fault.value, again: () => again.value++ };
}

function keep<T>(
  path: string,
  query: Given["query"],
  everyMs: number,
  found: Signal<T | null>,
  fault: Signal<Refusal | null>,
  again: Signal<number>,
): () => void {
  const stop = new AbortController();
  let timer = 0;
  let asking = false;
  let stale = false;
  const look = async () => {
    window.clearTimeout(timer);
    if (asking) {
      stale = true;
      return;
    }
    asking = true;
    stale = false;
    try {
      const value = await ask<T>("GET", path, { query, signal: stop.signal });
      if (!stop.signal.aborted) {
        found.value = value;
        fault.value = null;
      }
    } catch (error) {
      if (!stop.signal.aborted && error instanceof Refusal) {
        // What was shown stays while the hub is away.
        if (error.status && error.status !== 503) found.value = null;
        fault.value = error;
      }
    }
    asking = false;
    if (stop.signal.aborted) return;
    if (stale) void look();
    else if (document.visibilityState === "visible")
      timer = window.setTimeout(look, fault.value ? 1000 : everyMs);
  };
  const wake = () => document.visibilityState === "visible" && void look();
  document.addEventListener("visibilitychange", wake);
  const unTurn = turn.subscribe(() =>
    asking || found.peek() !== null || fault.peek() ? void look() : undefined,
  );
  const unAgain = again.subscribe(() => void look());
  return () => {
    stop.abort();
    window.clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
    unTurn();
    unAgain();
  };
}

export async function recall(): Promise<void> {
  if (!half()) {
    who.value = "nobody";
    return;
  }
  try {
    learn(await ask<SessionDocument>("GET", "/session"));
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) return;
    window.setTimeout(recall, 1000);
  }
}
