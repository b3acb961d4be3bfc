// One stream per tab: what changed, in frames. Pages say what they look at; what they show they ask for themselves.
import { effect, signal } from "@preact/signals";
import { Refusal, raw, reach, recall, turn } from "./hub.ts";
import { who } from "./session.ts";
import { Frames } from "./sse.ts";

export type ClusterFrame = {
  headline: string;
  workers: Record<string, number>;
  totals: Record<string, number>;
  rows: unknown[][];
  gone: string[];
  more: boolean;
};
type Rows = { cluster?: ClusterFrame; jobs?: unknown; queues?: unknown };

const HIDDEN_MS = 60_000;
const LEAST_MS = 500;
const MOST_MS = 15_000;
const SETTLE_MS = 80;

// What pages look at now; each of them takes its own back.
const wanted = signal<string[]>([]);
const hears = new Set<(frame: ClusterFrame | null) => void>();
let stop: AbortController | null = null;
let last = "";
let settling = 0;

export function look(views: string[]): () => void {
  wanted.value = [...wanted.value, ...views];
  return () => {
    const left = [...wanted.value];
    for (const view of views) left.splice(left.indexOf(view), 1);
    wanted.value = left;
  };
}

// Frames of the cluster, and null where all of it must be asked for anew.
export function hear(told: (frame: ClusterFrame | null) => void): () => void {
  hears.add(told);
  return () => hears.delete(told);
}

// Several changes at once are one look.
function settle(): void {
  if (settling) return;
  settling = window.setTimeout(() => {
    settling = 0;
    turn.value += 1;
  }, SETTLE_MS);
}

async function run(views: string, signal: AbortSignal): Promise<void> {
  let pause = LEAST_MS;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = last ? { "last-event-id": last } : {};
      const answer = await raw("GET", "/live", { query: { views }, headers, signal });
      pause = LEAST_MS;
      await read(answer);
      if (!signal.aborted) reach.value = "lost";
    } catch (fault) {
      if (signal.aborted) return;
      if (fault instanceof Refusal && [400, 401, 403].includes(fault.status)) {
        last = "";
        if (fault.status !== 400) return;
      }
      reach.value = "lost";
    }
    await sleep(pause * (0.5 + Math.random() / 2), signal);
    pause = Math.min(MOST_MS, pause * 2);
  }
}

async function read(answer: Response): Promise<void> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  const frames = new Frames();
  // What changed while nobody listened is looked at once more, and who answers now.
  settle();
  void recall();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    for (const frame of frames.take(value)) {
      if (frame.id) last = frame.id;
      if (frame.event === "reset") {
        for (const told of hears) told(null);
        settle();
      } else if (frame.event === "rows") {
        const rows = JSON.parse(frame.data) as Rows;
        if (rows.cluster) for (const told of hears) told(rows.cluster.more ? null : rows.cluster);
        if (rows.jobs || rows.queues) settle();
      }
    }
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const end = () => {
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", end);
      done();
    };
    const timer = window.setTimeout(end, ms);
    signal.addEventListener("abort", end);
    document.addEventListener("visibilitychange", end);
  });
}

let hidden = 0;
const asleep = signal(false);
document.addEventListener("visibilitychange", () => {
  window.clearTimeout(hidden);
  if (document.visibilityState === "visible") asleep.value = false;
  else
    hidden = window.setTimeout(() => {
      asleep.value = true;
    }, HIDDEN_MS);
});

let running = "";
effect(() => {
  const signedIn = typeof who.value === "object";
  const views = signedIn && !asleep.value ? [...new Set(wanted.value)].sort().join(",") : "";
  if (views === running) return;
  running = views;
  stop?.abort();
  if (!signedIn) last = "";
  if (!views) return;
  stop = new AbortController();
  void run(views, stop.signal);
});
