// Who is signed in. The page holds one half of the session's secret; the other is a cookie that no script can read.
import { signal } from "@preact/signals";
import type { NewSession, SessionDocument } from "./api.d.ts";

const KEPT = "dray.session";

export type Who = "unknown" | "nobody" | SessionDocument;
export const who = signal<Who>("unknown");
export const build = signal("");
export const outdated = signal(false);
// How far the hub's clock is ahead of the browser's.
let aheadMs = 0;

export function now(): number {
  return Date.now() + aheadMs;
}

export function half(): string {
  return window.localStorage.getItem(KEPT) ?? "";
}

export function may(scope: string): boolean {
  const known = who.value;
  return (
    typeof known === "object" && (known.scopes.includes(scope as never) || known.scopes.includes("admin"))
  );
}

export function user(): string {
  return typeof who.value === "object" ? who.value.user : "";
}

export function learn(session: SessionDocument): void {
  aheadMs = Date.parse(session.now) - Date.now();
  if (Math.abs(aheadMs) < 2000) aheadMs = 0;
  if (build.value && session.build && build.value !== session.build) outdated.value = true;
  build.value ||= session.build;
  // Pages look at who asks: the same one is no news.
  const known = who.value;
  if (typeof known !== "object" || known.token !== session.token) who.value = session;
}

export function forget(): void {
  window.localStorage.removeItem(KEPT);
  who.value = "nobody";
}

export async function signIn(given: { token?: string; code?: string }): Promise<string> {
  let answer: Response;
  try {
    answer = await fetch("/api/v1/session", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(given),
    });
  } catch {
    return "the hub does not answer: is it running?";
  }
  const document = await answer.json();
  if (!answer.ok) return document?.error?.message ?? `the hub answered ${answer.status}`;
  const session = document as NewSession;
  window.localStorage.setItem(KEPT, session.half ?? "");
  learn(session);
  return "";
}

// Signing out in one tab ends the others; signing in lets them in.
window.addEventListener("storage", (event) => {
  if (event.key !== KEPT && event.key !== null) return;
  who.value = half() ? "unknown" : "nobody";
});
