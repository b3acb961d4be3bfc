import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { JobCounts, JobDocument, JobList } from "../api.d.ts";
import { act, propose } from "../changes.tsx";
import { count, many, span, within } from "../format.ts";
import { useAsked } from "../hub.ts";
import { look } from "../live.ts";
import { param, query, tune } from "../route.ts";
import { may, now, user } from "../session.ts";
import { type Column, Empty, Fault, Lead, State, Table, Time } from "../ui.tsx";

const STATES = ["pending", "running", "succeeded", "failed", "killed", "unschedulable", "worker_failed"];

export function lasted(job: JobDocument): string {
  if (!job.started_at) return "";
  const end = job.ended_at ? Date.parse(job.ended_at) : now();
  return span((end - Date.parse(job.started_at)) / 1000);
}

export function asks(spec: Record<string, unknown> = {}): string {
  const said: string[] = [];
  const cards = Number(spec.gpu_count ?? 0);
  if (cards) said.push(`${cards} × ${String(spec.gpu_type || "GPU")}`);
  else if (spec.gpu_milli) said.push(`${Number(spec.gpu_milli) / 1000} GPU`);
  const cores = spec.cpu_milli ? Number(spec.cpu_milli) / 1000 : Number(spec.min_cpu_cores ?? 0);
  if (cores) said.push(many(cores, "core"));
  const nodes = Number(spec.node_count ?? 1);
  if (nodes > 1) said.push(`on each of ${nodes} nodes`);
  return said.join(", ");
}

function where(job: JobDocument) {
  if (job.state === "pending")
    return job.estimate ? within(job.estimate.p50_s, job.estimate.p90_s) : job.reason;
  if (job.state === "running" || job.state === "succeeded") return job.worker || job.note;
  return job.verdict?.title || job.error || job.note;
}

const COLUMNS: Column<JobDocument>[] = [
  { name: "State", of: (job) => <State of={job.state} held={job.held} /> },
  { name: "Job", of: (job) => <a href={`/ui/jobs/${job.id}`}>{job.name || job.id}</a>, wide: true },
  { name: "User", of: (job) => job.user },
  { name: "Queue", of: (job) => job.queue },
  { name: "Asks", of: (job) => asks(job.spec) },
  {
    name: "Tasks",
    of: (job) =>
      job.tasks && job.tasks.total > 1 ? `${count(job.tasks.succeeded)}/${count(job.tasks.total)}` : "",
    right: true,
  },
  { name: "Submitted", of: (job) => <Time at={job.submitted_at} /> },
  { name: "Ran", of: (job) => lasted(job), right: true },
  { name: "Where, or why", of: (job) => where(job), wide: true },
];

// Ticked rows, by their ids; what is done to them is asked of the hub as one.
function ticks(chosen: Signal<string[]>): Column<JobDocument> {
  return {
    name: "Tick",
    of: (job) => (
      <input
        type="checkbox"
        aria-label={`Tick ${job.name || job.id}`}
        checked={chosen.value.includes(job.id)}
        onChange={(event) => {
          const others = chosen.value.filter((id) => id !== job.id);
          chosen.value = event.currentTarget.checked ? [...others, job.id] : others;
        }}
      />
    ),
  };
}

function Ticked({ chosen }: { chosen: Signal<string[]> }) {
  if (!chosen.value.length) return null;
  return (
    <div class="buttons ticked" role="toolbar" aria-label="What to do with the ticked jobs">
      <span>{many(chosen.value.length, "job")} ticked</span>
      {(["hold", "release", "requeue", "cancel"] as const).map((action) => (
        <button
          key={action}
          type="button"
          class={action === "cancel" ? "grave" : ""}
          data-key={action === "cancel" ? "c" : undefined}
          onClick={() => propose(act(action, chosen.value))}
        >
          {action}
        </button>
      ))}
      <button
        type="button"
        class="plain"
        onClick={() => {
          chosen.value = [];
        }}
      >
        none
      </button>
    </div>
  );
}

export function Jobs() {
  const chosen = useSignal<string[]>([]);
  useEffect(() => look(["jobs"]), []);
  const given = query.value;
  const mine = given.has("user") ? given.get("user") : "";
  const listed = useAsked<JobList>("/jobs", {
    state: param("state"),
    user: mine,
    queue: param("queue"),
    name: param("name"),
    q: param("q"),
    worker: param("worker"),
    label: param("label"),
    cursor: param("cursor"),
    limit: 50,
    count: 1,
  });
  return (
    <>
      <header class="title">
        <h1>Jobs</h1>
        {may("submit") ? (
          <a class="button" href="/ui/submit">
            Submit a job
          </a>
        ) : null}
      </header>
      <Summary />
      <Filters />
      <Ticked chosen={chosen} />
      {listed.fault && listed.found ? <Fault of={listed.fault} /> : null}
      {listed.found?.jobs.length === 0 ? <Nothing /> : null}
      {listed.found?.jobs.length ? (
        <Table
          caption="Jobs, newest first"
          columns={may("submit") ? [ticks(chosen), ...COLUMNS] : COLUMNS}
          rows={listed.found.jobs}
          id={(job) => job.id}
          link={(job) => `/jobs/${job.id}`}
        />
      ) : null}
      <footer class="pages">
        {param("cursor") ? (
          <button type="button" onClick={() => tune({ cursor: null })}>
            Newest
          </button>
        ) : null}
        {listed.found?.next_cursor ? (
          <button type="button" onClick={() => tune({ cursor: listed.found?.next_cursor ?? null })}>
            Older
          </button>
        ) : null}
      </footer>
    </>
  );
}

// In the hub's words, of all that there are and not of this page alone.
function Summary() {
  const counted = useAsked<JobCounts>("/jobs:counts", { user: param("user"), queue: param("queue") });
  return <Lead>{counted.found?.headline ?? " "}</Lead>;
}

function Filters() {
  const chosen = param("state").split(",").filter(Boolean);
  const flip = (state: string) => {
    const next = chosen.includes(state) ? chosen.filter((one) => one !== state) : [...chosen, state];
    tune({ state: next.join(","), cursor: null });
  };
  return (
    <search class="filters">
      <fieldset>
        <legend class="unseen">Only these states</legend>
        {STATES.map((state) => (
          <button
            key={state}
            type="button"
            class="chip"
            aria-pressed={chosen.includes(state)}
            onClick={() => flip(state)}
          >
            <State of={state} />
          </button>
        ))}
      </fieldset>
      <label>
        <input
          type="checkbox"
          checked={param("user") === user()}
          onChange={(event) => tune({ user: event.currentTarget.checked ? user() : null, cursor: null })}
        />{" "}
        only mine
      </label>
      <Field label="Queue" name="queue" />
      <Field label="Find" name="q" find />
    </search>
  );
}

function Field({ label, name, find = false }: { label: string; name: string; find?: boolean }) {
  return (
    <label>
      {label}{" "}
      <input
        type="search"
        size={10}
        name={name}
        data-find={find ? "" : undefined}
        value={param(name)}
        onChange={(event) => tune({ [name]: event.currentTarget.value.trim() || null, cursor: null })}
      />
    </label>
  );
}

function Nothing() {
  const filtered = [...query.value.keys()].length > 0;
  if (filtered) return <Empty>No job is like that. Take a filter away, or look at all of them.</Empty>;
  return (
    <Empty command='dray run -- echo "hello"'>
      There are no jobs yet.{" "}
      {may("submit") ? "Submit one here, or from a terminal:" : "Somebody submits one like this:"}
    </Empty>
  );
}
