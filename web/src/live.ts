// What changed, in frames. Pages say what they look at; what they show they ask for themselves. One tab of a browser
// listens for all of them: a browser opens but six connections to a hub, and streams would use them up.
import { computed, effect, signal } from "@preact/signals";
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
type Heard = { rows?: Rows; begun?: true; reset?: true; reach?: "live" | "lost" };
type Said = Heard & { from: string; wants?: string[]; who?: true };

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
      if (!signal.aborted) tell({ reach: "lost" });
    } catch (fault) {
      if (signal.aborted) return;
      if (fault instanceof Refusal && [400, 401, 403].includes(fault.status)) {
        last = "";
        if (fault.status !== 400) return;
      }
      tell({ reach: "lost" });
    }
    await sleep(pause * (0.5 + Math.random() / 2), signal);
    pause = Math.min(MOST_MS, pause * 2);
  }
}

async function read(answer: Response): Promise<void> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  const frames = new Frames();
  tell({ begun: true, reach: "live" });
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    for (const frame of frames.take(value)) {
      if (frame.id) last = frame.id;
      if (frame.event === "reset") tell({ reset: true });
      else if (frame.event === "rows") tell({ rows: JSON.parse(frame.data) as Rows });
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

// --- tabs beside each other ------------------------------------------------------------------------------------------

const me = String(window.crypto.getRandomValues(new Uint32Array(2)));
const tabs = new BroadcastChannel("dray.live");
const leads = signal(false);
const others = signal(new Map<string, string[]>());

function tell(heard: Heard): void {
  take(heard);
  tabs.postMessage({ ...heard, from: me } satisfies Said);
}

function take(heard: Heard): void {
  if (heard.reach) reach.value = heard.reach;
  if (heard.begun) {
    // What changed while nobody listened is looked at once more, and who answers now.
    settle();
    void recall();
  }
  if (heard.reset) {
    for (const told of hears) told(null);
    settle();
  }
  const cluster = heard.rows?.cluster;
  if (cluster) for (const told of hears) told(cluster.more ? null : cluster);
  if (heard.rows?.jobs || heard.rows?.queues) settle();
}

const own = computed(() =>
  typeof who.value === "object" && !asleep.value ? [...new Set(wanted.value)] : [],
);
const awake = computed(() => own.value.length > 0);

tabs.onmessage = (event: MessageEvent<Said>) => {
  const said = event.data;
  if (said.wants) others.value = new Map(others.peek()).set(said.from, said.wants);
  else if (said.who) tabs.postMessage({ from: me, wants: own.peek() });
  else if (!leads.peek()) take(said);
};
window.addEventListener("pagehide", () => tabs.postMessage({ from: me, wants: [] }));
effect(() => tabs.postMessage({ from: me, wants: own.value }));

effect(() => {
  if (!awake.value) return;
  // Without locks (plain HTTP to another machine) each tab listens for itself.
  if (!navigator.locks) {
    leads.value = true;
    return () => {
      leads.value = false;
    };
  }
  const leave = new AbortController();
  const left = new Promise<void>((done) => leave.signal.addEventListener("abort", () => done()));
  navigator.locks
    .request("dray.live", { signal: leave.signal }, async () => {
      leads.value = true;
      tabs.postMessage({ from: me, who: true });
      await left;
      leads.value = false;
    })
    .catch(() => null);
  return () => leave.abort();
});

let running = "";
effect(() => {
  const all = leads.value ? [...own.value, ...[...others.value.values()].flat()] : [];
  const views = [...new Set(all)].sort().join(",");
  if (views === running) return;
  running = views;
  stop?.abort();
  if (!own.value.length) last = "";
  if (!views) return;
  stop = new AbortController();
  void run(views, stop.signal);
});
