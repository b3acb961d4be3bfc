import { useEffect } from "preact/hooks";
import type { AttemptDocument, JobDocument, JobEvents, PreemptionList, TaskList } from "../api.d.ts";
import { act, propose } from "../changes.tsx";
import { bytes, count, many, percent, shellLine, span } from "../format.ts";
import { useAsked } from "../hub.ts";
import { look } from "../live.ts";
import { param, tune } from "../route.ts";
import { may, user } from "../session.ts";
import { type Column, Command, Empty, Facts, Lead, Pick, Shown, State, Table, Tabs, Time } from "../ui.tsx";
import { asks, lasted } from "./jobs.tsx";
import { Log } from "./log.tsx";
import { WhyPart } from "./why.tsx";

const ENDED = ["succeeded", "failed", "killed", "worker_failed"];

export function Job({ id }: { id: string }) {
  useEffect(() => look([`job:${id}`]), [id]);
  const asked = useAsked<JobDocument>(`/jobs/${id}`);
  return <Shown of={asked}>{(job) => <Whole job={job} />}</Shown>;
}

function Whole({ job }: { job: JobDocument }) {
  const ended = ENDED.includes(job.state);
  const waits = !ended && job.state !== "running";
  const tabs: [string, string][] = [
    ["why", waits ? "why" : "how it went"],
    ["tasks", job.tasks && job.tasks.total > 1 ? `tasks (${count(job.tasks.total)})` : "attempts"],
    ["log", "log"],
    ["events", "events"],
    ["spec", "spec"],
    ["load", "load"],
    ["receipts", job.preemptions ? `receipts (${job.preemptions})` : "receipts"],
  ];
  const tab = param("tab") || (waits ? "why" : "log");
  return (
    <>
      <header class="title">
        <h1>{job.name || job.id}</h1>
        <State of={job.state} held={job.held} />
        <Buttons job={job} ended={ended} />
      </header>
      <Facts
        rows={[
          ["id", job.id],
          ["user", job.user],
          ["queue", <a href={`/ui/queues/${job.queue}`}>{job.queue}</a>],
          ["priority", job.priority],
          ["asks", asks(job.spec)],
          ["submitted", <Time at={job.submitted_at} />],
          ["ran", lasted(job)],
          ["worker", job.worker ? <a href={`/ui/workers/${job.worker}`}>{job.worker}</a> : ""],
          ["after", (job.after ?? []).join(", ")],
          [
            "labels",
            Object.entries(job.labels ?? {})
              .map(([key, value]) => `${key}=${value}`)
              .join(", "),
          ],
        ]}
      />
      {waits ? null : <Lead>{ending(job)}</Lead>}
      {job.tasks && job.tasks.total > 1 ? <Counts job={job} /> : null}
      {job.progress?.fraction ? (
        <p>
          <progress value={job.progress.fraction} max={1} aria-label="progress" />{" "}
          {percent(job.progress.fraction, 1)} {job.progress.note}
        </p>
      ) : null}
      <Tabs of={tabs} chosen={tab} to={(to) => `/ui/jobs/${job.id}?tab=${to}`} />
      {tab === "why" ? <WhyPart job={job} waits={waits} /> : null}
      {tab === "tasks" ? <Tasks job={job} /> : null}
      {tab === "log" ? <Log job={job} /> : null}
      {tab === "events" ? <Events id={job.id} /> : null}
      {tab === "spec" ? <Spec job={job} /> : null}
      {tab === "load" ? <Load job={job} /> : null}
      {tab === "receipts" ? <Receipts id={job.id} /> : null}
    </>
  );
}

function ending(job: JobDocument): string {
  if (job.state === "running")
    return job.note || `Runs${job.worker ? ` on ${job.worker}` : ""} for ${lasted(job)}.`;
  const said = job.verdict?.title || job.error || job.note;
  const ran = job.started_at ? ` after ${lasted(job)}` : "";
  const code = job.exit_code ? ` (exit code ${job.exit_code})` : "";
  if (job.state === "succeeded") return `Succeeded${ran}.`;
  const bad = (job.tasks?.failed ?? 0) + (job.tasks?.worker_failed ?? 0);
  if (job.tasks && job.tasks.total > 1 && bad)
    return `${count(bad)} of ${many(job.tasks.total, "task")} failed${ran}.`;
  const words = said || job.state.replace("_", " ");
  return `${words[0]?.toUpperCase()}${words.slice(1)}${code}${ran}.`;
}

function Buttons({ job, ended }: { job: JobDocument; ended: boolean }) {
  if (!may("submit") || (job.user !== user() && !may("admin"))) return null;
  const on = (action: "cancel" | "hold" | "release" | "requeue") => () => propose(act(action, [job.id]));
  return (
    <div class="buttons">
      {ended ? null : job.held ? (
        <button type="button" onClick={on("release")}>
          Release
        </button>
      ) : (
        <button type="button" onClick={on("hold")}>
          Hold
        </button>
      )}
      {job.state === "running" ? (
        <button type="button" onClick={on("requeue")}>
          Run again
        </button>
      ) : null}
      {job.calls ? null : (
        <a class="button" href={`/ui/submit?like=${job.id}`}>
          Submit one like it
        </a>
      )}
      {ended ? null : (
        <button type="button" class="grave" data-key="c" onClick={on("cancel")}>
          Cancel
        </button>
      )}
    </div>
  );
}

const ORDER = [
  "succeeded",
  "running",
  "pending",
  "failed",
  "worker_failed",
  "killed",
  "unschedulable",
] as const;

function Counts({ job }: { job: JobDocument }) {
  const tasks = job.tasks;
  if (!tasks) return null;
  return (
    <div
      class="mosaic"
      role="group"
      aria-label={ORDER.filter((s) => tasks[s])
        .map((s) => `${tasks[s]} ${s}`)
        .join(", ")}
    >
      {ORDER.filter((state) => tasks[state]).map((state) => (
        <a
          key={state}
          class={`part part-${state}`}
          style={{ flexGrow: Math.max((tasks[state] ?? 0) / tasks.total, 0.02) }}
          href={`/ui/jobs/${job.id}?tab=tasks&state=${state}`}
        >
          {count(tasks[state])} {state.replace("_", " ")}
        </a>
      ))}
    </div>
  );
}

const ATTEMPTS: Column<AttemptDocument>[] = [
  { name: "State", of: (one) => <State of={one.phase} /> },
  { name: "Task", of: (one) => one.task_id, wide: true },
  { name: "Attempt", of: (one) => one.no, right: true },
  { name: "Worker", of: (one) => <a href={`/ui/workers/${one.worker}`}>{one.worker}</a> },
  { name: "Cards", of: (one) => (one.devices ?? []).join(" ") },
  { name: "Started", of: (one) => <Time at={one.started_at} /> },
  { name: "Ended", of: (one) => <Time at={one.ended_at} /> },
  {
    name: "How",
    of: (one) => one.verdict?.title || one.error || one.cancel_reason || one.exit_class,
    wide: true,
  },
];

function Tasks({ job }: { job: JobDocument }) {
  const listed = useAsked<TaskList>(`/jobs/${job.id}/tasks`, {
    state: param("state"),
    cursor: param("cursor"),
    limit: 50,
  });
  return (
    <section>
      {job.tasks && job.tasks.total > 1 ? (
        <div class="filters">
          <Pick
            label="State"
            of={[["", "any"], ...ORDER.map((state): [string, string] => [state, state.replace("_", " ")])]}
            chosen={param("state")}
            onPick={(to) => tune({ state: to || null, cursor: null })}
          />
        </div>
      ) : null}
      <Shown of={listed}>
        {(found) => {
          const rows = found.tasks.flatMap((task) =>
            task.attempts?.length ? [...task.attempts].reverse() : [],
          );
          const idle = found.tasks.length - found.tasks.filter((task) => task.attempts?.length).length;
          return (
            <>
              {rows.length ? (
                <Table
                  caption="Attempts of tasks, the newest of each first"
                  columns={ATTEMPTS}
                  rows={rows}
                  id={(one) => one.uid || `${one.task_id}.${one.no}`}
                />
              ) : null}
              {idle ? <p class="faint">{many(idle, "task")} of this page started nothing yet.</p> : null}
              {found.tasks.length ? null : <Empty>No task is like that.</Empty>}
              {found.next_cursor ? (
                <button type="button" onClick={() => tune({ cursor: found.next_cursor ?? null })}>
                  More
                </button>
              ) : null}
            </>
          );
        }}
      </Shown>
    </section>
  );
}

function Events({ id }: { id: string }) {
  const listed = useAsked<JobEvents>(`/jobs/${id}/events`);
  return (
    <Shown of={listed}>
      {(found) => (
        <Table
          caption="What happened"
          rows={found.events.map((event, n) => ({ ...event, n })).reverse()}
          id={(event) => String(event.n)}
          columns={[
            { name: "When", of: (event) => <Time at={event.at} /> },
            { name: "What", of: (event) => event.type.replaceAll("_", " ") },
            { name: "Task", of: (event) => event.task_id },
            { name: "Worker", of: (event) => event.worker },
            { name: "In words", of: (event) => event.message, wide: true },
          ]}
        />
      )}
    </Shown>
  );
}

function Spec({ job }: { job: JobDocument }) {
  const command = Array.isArray(job.spec?.command) ? (job.spec?.command as string[]) : [];
  return (
    <section class="stack">
      {command.length ? <Command text={shellLine(command.map(String))} /> : null}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <pre class="log" tabIndex={0} aria-label="The spec as JSON" role="region">
        {JSON.stringify(job.spec, null, 2)}
      </pre>
    </section>
  );
}

function Load({ job }: { job: JobDocument }) {
  const rows = (job.attempts ?? []).filter((one) => one.usage);
  if (!rows.length) {
    return <Empty>What its tasks use is told when an attempt ends, or while its worker measures it.</Empty>;
  }
  return (
    <Table
      caption="What attempts used"
      rows={rows}
      id={(one) => one.uid}
      columns={[
        { name: "Attempt", of: (one) => `${one.task_id} #${one.no}`, wide: true },
        { name: "Wall", of: (one) => span(one.usage?.wall_s ?? 0), right: true },
        { name: "CPU", of: (one) => span(one.usage?.cpu_s ?? 0), right: true },
        {
          name: "Cores, mean",
          of: (one) => ((one.usage?.cpu_s ?? 0) / Math.max(one.usage?.wall_s ?? 1, 0.001)).toFixed(2),
          right: true,
        },
        { name: "Memory, most", of: (one) => bytes(one.usage?.max_rss_bytes ?? 0), right: true },
        {
          name: "GPU",
          of: (one) =>
            one.usage?.gpu_s === null || one.usage?.gpu_s === undefined
              ? ""
              : percent(one.usage.gpu_s, one.usage.gpu_seen_s),
          right: true,
        },
        {
          name: "GPU memory, most",
          of: (one) => (one.usage?.max_gpu_bytes ? bytes(one.usage.max_gpu_bytes) : ""),
          right: true,
        },
      ]}
    />
  );
}

function Receipts({ id }: { id: string }) {
  const listed = useAsked<PreemptionList>("/preemptions", { job: id });
  return (
    <Shown of={listed}>
      {(found) =>
        found.preemptions.length ? (
          <Table
            caption="Receipts of preemptions"
            rows={found.preemptions}
            id={(one) => one.id}
            columns={[
              { name: "Receipt", of: (one) => one.id },
              { name: "When", of: (one) => <Time at={one.decided_at} /> },
              {
                name: "For",
                of: (one) =>
                  one.job_id ? <a href={`/ui/jobs/${one.job_id}`}>{one.task_id}</a> : "somebody else",
              },
              { name: "Rule", of: (one) => one.rule },
              {
                name: "Stopped",
                of: (one) =>
                  (one.victims ?? []).map((victim) => victim.task_id ?? "somebody else's").join(", "),
                wide: true,
              },
              { name: "Lost", of: (one) => span(one.lost_s), right: true },
            ]}
          />
        ) : (
          <Empty>Nobody was stopped for this job, and it was stopped for nobody.</Empty>
        )
      }
    </Shown>
  );
}
