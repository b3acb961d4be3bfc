// Every change in three steps: what it would do (in the hub's words), yes or no, what it did, with the way back.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Act, ActAnswer } from "./api.d.ts";
import { many } from "./format.ts";
import { ask, Refusal, turn } from "./hub.ts";
import { Dialog } from "./ui.tsx";

export type Change = {
  title: string;
  // What would happen; null where nothing would.
  preview: () => Promise<ComponentChildren>;
  run: () => Promise<ComponentChildren>;
  undo?: { name: string; run: () => Promise<ComponentChildren> };
  grave?: boolean;
};
type Step = "asking" | "asked" | "doing" | "done" | "refused";

const open = signal<Change | null>(null);
const step = signal<Step>("asking");
const words = signal<ComponentChildren>("");
const undone = signal(false);

export function propose(change: Change): void {
  open.value = change;
  undone.value = false;
}

function close(): void {
  open.value = null;
}

async function go(to: Step, work: () => Promise<ComponentChildren>, during: Step): Promise<void> {
  const mine = open.value;
  step.value = during;
  try {
    const said = await work();
    if (open.value !== mine) return;
    words.value = said;
    step.value = to;
  } catch (fault) {
    if (open.value !== mine) return;
    words.value = fault instanceof Refusal ? fault.message : String(fault);
    step.value = "refused";
  }
  turn.value += 1;
}

export function Changes() {
  const change = open.value;
  useEffect(() => {
    if (change) void go("asked", change.preview, "asking");
  }, [change]);
  if (!change) return null;
  return (
    <Dialog title={change.title} onClose={close}>
      <div class="change" aria-live="polite">
        {step.value === "asking" ? <p class="faint">Asking the hub what that would do …</p> : null}
        {step.value === "doing" ? <p class="faint">Asked. Waiting for the hub …</p> : null}
        {step.value === "asked" || step.value === "done" ? <div>{words.value}</div> : null}
        {step.value === "refused" ? (
          <div class="fault" role="alert">
            {words.value}
          </div>
        ) : null}
      </div>
      <div class="buttons">
        {step.value === "asked" ? (
          <button
            type="button"
            class={change.grave ? "grave" : "first"}
            onClick={() => void go("done", change.run, "doing")}
          >
            {change.title}
          </button>
        ) : null}
        {step.value === "done" && change.undo && !undone.value ? (
          <button
            type="button"
            onClick={() => {
              undone.value = true;
              if (change.undo) void go("done", change.undo.run, "doing");
            }}
          >
            {change.undo.name}
          </button>
        ) : null}
        <button type="button" onClick={close}>
          {step.value === "done" || step.value === "refused" ? "Close" : "Leave it"}
        </button>
      </div>
    </Dialog>
  );
}

const DOES: Record<Act["action"], [string, string]> = {
  cancel: ["Cancel", "is cancelled; what it runs is stopped"],
  hold: ["Hold", "starts nothing more until it is released; what runs goes on"],
  release: ["Release", "may start again"],
  requeue: ["Run again", "is stopped where it runs, and queued again"],
};
const BACK: Partial<Record<Act["action"], Act["action"]>> = { hold: "release", release: "hold" };

// Of jobs, by their ids: what the hub would do is counted by the hub.
export function act(action: Act["action"], ids: string[], more: ComponentChildren = null): Change {
  const [title, does] = DOES[action];
  const send = (what: Act["action"], dry: boolean) =>
    ask<ActAnswer>("POST", "/jobs:act", { body: { action: what, ids, dry_run: dry } });
  const told = (answer: ActAnswer, done: boolean): ComponentChildren => {
    const left = Object.entries(answer.unchanged).map(([why, n]) => `${many(n, "job")} unchanged: ${why}`);
    const states = Object.entries(answer.states).map(([state, n]) => `${n} ${state}`);
    return (
      <>
        <p>
          {answer.count === 0
            ? "Nothing changes."
            : done
              ? `Done: ${many(answer.count, "job")}.`
              : `${many(answer.count, "job")} (${states.join(", ")}) ${does}.`}
        </p>
        {left.map((line) => (
          <p key={line} class="faint">
            {line}
          </p>
        ))}
        {done ? null : more}
      </>
    );
  };
  const back = BACK[action];
  return {
    title: ids.length > 1 ? `${title} ${many(ids.length, "job")}` : title,
    preview: async () => told(await send(action, true), false),
    run: async () => told(await send(action, false), true),
    undo: back ? { name: `Undo: ${back}`, run: async () => told(await send(back, false), true) } : undefined,
    grave: action === "cancel" || action === "requeue",
  };
}
