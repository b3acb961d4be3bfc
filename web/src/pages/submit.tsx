import { useSignal } from "@preact/signals";
import type { TargetedSubmitEvent } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { JobDocument, PlanAnswer } from "../api.d.ts";
import { again, draft, FIELDS, type Fields } from "../draft.ts";
import { many, span, within } from "../format.ts";
import { ask, Refusal } from "../hub.ts";
import { go, param, query, tune } from "../route.ts";
import { may } from "../session.ts";
import { Card, Empty, Tabs } from "../ui.tsx";

const PAUSE_MS = 300;
type Spec = Record<string, unknown>;

export function Submit() {
  const mode = param("as") || (param("like") ? "yaml" : "form");
  if (!may("submit"))
    return <Empty>Your token may look and not submit: ask an admin for one with the scope submit.</Empty>;
  const rest = new URLSearchParams(query.value);
  rest.delete("as");
  return (
    <>
      <header class="title">
        <h1>Submit a job</h1>
        <a href="/ui/templates">by a template</a>
      </header>
      <Tabs
        of={[
          ["form", "form"],
          ["yaml", "YAML"],
        ]}
        chosen={mode}
        to={(to) => `/ui/submit?${new URLSearchParams([...rest, ["as", to]])}`}
      />
      {mode === "form" ? <Form /> : <Text key={param("like")} like={param("like")} />}
    </>
  );
}

function key(): string {
  return [...window.crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

function Form() {
  const fields: Fields = Object.fromEntries(query.value);
  const made = useMemo(() => draft(fields), [query.value.toString()]);
  const set = (name: string) => (event: { currentTarget: { value: string } }) =>
    tune({ [name]: event.currentTarget.value || null }, true);
  return (
    <Draft spec={made.faults.length ? null : made.spec} faults={made.faults}>
      <label class="wide">
        Command
        <textarea
          rows={3}
          spellcheck={false}
          placeholder="python train.py --lr 0.1"
          value={fields.command ?? ""}
          onInput={set("command")}
        />
      </label>
      {FIELDS.map(([name, label, hint]) => (
        <label key={name}>
          {label}
          <input
            name={name}
            value={fields[name] ?? ""}
            placeholder={hint}
            autocomplete="off"
            onInput={set(name)}
          />
        </label>
      ))}
    </Draft>
  );
}

const EXAMPLE = `command: [python, train.py]
name: train
gpu_count: 1
max_runtime_s: 7200
`;

function Text({ like }: { like: string }) {
  const text = useSignal(like ? "" : EXAMPLE);
  const spec = useSignal<Spec | null>(null);
  const faults = useSignal<string[]>([]);
  useEffect(() => {
    if (!like) return;
    void (async () => {
      try {
        const [job, { stringify }] = await Promise.all([
          ask<JobDocument>("GET", `/jobs/${like}`),
          import("yaml"),
        ]);
        text.value = stringify(again(job.spec ?? {}));
      } catch (fault) {
        faults.value = [fault instanceof Error ? fault.message : String(fault)];
      }
    })();
  }, [like]);
  useEffect(() => {
    const read = async () => {
      const { parse } = await import("yaml");
      try {
        const found: unknown = parse(text.value, { maxAliasCount: 20 });
        const sound = typeof found === "object" && found !== null && !Array.isArray(found);
        spec.value = sound ? (found as Spec) : null;
        faults.value = sound || !text.value ? [] : ["a job is a list of `field: value`"];
      } catch (fault) {
        spec.value = null;
        faults.value = [fault instanceof Error ? (fault.message.split("\n")[0] ?? "") : String(fault)];
      }
    };
    void read();
  }, [text.value]);
  return (
    <Draft spec={spec.value} faults={faults.value}>
      <label class="wide">
        The spec, as the API has it (JSON is YAML too)
        <textarea
          rows={14}
          class="mono"
          spellcheck={false}
          value={text.value}
          onInput={(event) => {
            text.value = event.currentTarget.value;
          }}
        />
      </label>
    </Draft>
  );
}

// A draft and what the hub says of it while it is typed; the key makes a second press of the button harmless.
export function Draft(props: { spec: Spec | null; faults: string[]; children: preact.ComponentChildren }) {
  const plan = useSignal<PlanAnswer | null>(null);
  const fault = useSignal<Refusal | null>(null);
  const busy = useSignal(false);
  const once = useRef(key());
  const text = props.spec ? JSON.stringify(props.spec) : "";
  useEffect(() => {
    plan.value = null;
    fault.value = null;
    once.current = key();
    if (!text) return;
    const stop = new AbortController();
    const timer = window.setTimeout(async () => {
      try {
        plan.value = await ask<PlanAnswer>("POST", "/plan", { body: JSON.parse(text), signal: stop.signal });
      } catch (error) {
        if (error instanceof Refusal) fault.value = error;
      }
    }, PAUSE_MS);
    return () => {
      window.clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  const submit = async (event: TargetedSubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    if (!props.spec || busy.value) return;
    busy.value = true;
    try {
      const job = await ask<JobDocument>("POST", "/jobs", {
        body: props.spec,
        headers: { "idempotency-key": once.current },
      });
      go(`/jobs/${job.id}`);
    } catch (error) {
      if (error instanceof Refusal) fault.value = error;
    }
    busy.value = false;
  };
  return (
    <form class="draft" onSubmit={submit}>
      <div class="fields">{props.children}</div>
      <Card title="What would happen">
        <div aria-live="polite" class="stack">
          {props.faults.map((line) => (
            <p key={line} class="faint">
              {line}
            </p>
          ))}
          {fault.value ? <Faults of={fault.value} /> : null}
          {plan.value ? (
            <Plan of={plan.value} />
          ) : text && !fault.value ? (
            <p class="faint">Asking the hub …</p>
          ) : null}
        </div>
        <button type="submit" class="first" disabled={!props.spec || busy.value}>
          Submit
        </button>
      </Card>
    </form>
  );
}

function Faults({ of }: { of: Refusal }) {
  const problems = of.body.problems ?? [];
  return (
    <div class="fault" role="alert">
      {problems.length
        ? problems.map((one) => <p key={one.where + one.what}>{`${one.where}: ${one.what}`}</p>)
        : of.message}
    </div>
  );
}

export function Plan({ of }: { of: PlanAnswer }) {
  const where = [...new Set((of.placements ?? []).map((one) => one.worker))];
  return (
    <>
      <p class="large">{of.summary}</p>
      {where.length ? (
        <p>
          On {where.slice(0, 5).join(", ")}
          {where.length > 5 ? ` and ${where.length - 5} more` : ""}.
        </p>
      ) : null}
      {of.victims?.length ? (
        <p class="care">
          Stops {many(of.victims.length, "task")}; {span(of.lost_s)} of work is lost.
        </p>
      ) : null}
      {of.estimate && typeof of.estimate.p50_s === "number" && !of.starts_now ? (
        <p>Starts in {within(of.estimate.p50_s, of.estimate.p90_s)}.</p>
      ) : null}
      {of.change ? <p>What would help: {of.change.message}</p> : of.fix ? <p>{of.fix}</p> : null}
      {of.place && !of.starts_now ? <p class="faint">{of.place.message}</p> : null}
    </>
  );
}
