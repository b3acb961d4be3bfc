import { useEffect } from "preact/hooks";
import type { QueueDetail, QueueList, QuotaList, UsageAnswer } from "../api.d.ts";
import { count, many, percent, span } from "../format.ts";
import { useAsked } from "../hub.ts";
import { look } from "../live.ts";
import { Bar, Card, Empty, Facts, Lead, Shown, Table, Time } from "../ui.tsx";

// Who uses, who waits, is it fair?
export function Queues() {
  useEffect(() => look(["queues"]), []);
  const queues = useAsked<QueueList>("/queues");
  return (
    <>
      <h1>Queues and people</h1>
      <Shown of={queues}>
        {(found) => {
          const waiting = found.queues.reduce((sum, one) => sum + (one.waiting ?? 0), 0);
          const running = found.queues.reduce((sum, one) => sum + (one.running ?? 0), 0);
          const longest = [...found.queues].sort(
            (a, b) => (b.oldest_wait_s ?? 0) - (a.oldest_wait_s ?? 0),
          )[0];
          return (
            <>
              <Lead>
                {many(running, "task")} {running === 1 ? "runs" : "run"}, {count(waiting)}{" "}
                {waiting === 1 ? "waits" : "wait"}
                {longest?.oldest_wait_s
                  ? `; the oldest for ${span(longest.oldest_wait_s)}, in ${longest.name}`
                  : ""}
                .
              </Lead>
              <Table
                caption="Queues"
                rows={found.queues}
                id={(one) => one.name}
                link={(one) => `/queues/${one.name}`}
                columns={[
                  {
                    name: "Queue",
                    of: (one) => <a href={`/ui/queues/${one.name}`}>{one.name}</a>,
                    wide: true,
                  },
                  { name: "Order", of: (one) => one.policy },
                  { name: "Weight", of: (one) => one.weight, right: true },
                  {
                    name: "GPUs held",
                    of: (one) =>
                      one.gpus_limit ? (
                        <Bar
                          part={one.gpus_held}
                          whole={one.gpus_limit}
                          label={`${count(one.gpus_held)} of ${count(one.gpus_limit)}`}
                        />
                      ) : (
                        count(one.gpus_held)
                      ),
                  },
                  { name: "Run", of: (one) => count(one.running), right: true },
                  { name: "Wait", of: (one) => count(one.waiting), right: true },
                  {
                    name: "Oldest",
                    of: (one) => ((one.oldest_wait_s ?? null) === null ? "" : span(one.oldest_wait_s)),
                    right: true,
                  },
                  {
                    name: "Wait, p50 / p90",
                    of: (one) =>
                      (one.wait_p50_s ?? null) === null
                        ? ""
                        : `${span(one.wait_p50_s)} / ${span(one.wait_p90_s ?? 0)}`,
                    right: true,
                  },
                  {
                    name: "Starts a minute",
                    of: (one) => (one.starts_per_min_5m ?? 0).toFixed(1),
                    right: true,
                  },
                ]}
              />
            </>
          );
        }}
      </Shown>
      <div class="cards">
        <People />
        <Used />
      </div>
      <Quotas />
    </>
  );
}

type UserRow = {
  user: string;
  users: number;
  weight: number | null;
  share: number;
  times_share: number | null;
  running: number;
  gpus_held: number;
  waiting: number;
  oldest_wait_s: number | null;
  wait_p50_s: number | null;
  wait_p90_s: number | null;
  stopped: number;
  lost_s: number;
};

// Who holds how often their share, and who waits.
function People() {
  const asked = useAsked<{ headline: string; users: UserRow[] }>("/users");
  return (
    <Card title="People">
      <Shown of={asked}>
        {(found) => (
          <>
            <p class="large">{found.headline}</p>
            {found.users.length ? (
              <Table
                caption="People"
                rows={found.users}
                id={(one) => one.user || "others"}
                columns={[
                  {
                    name: "User",
                    of: (one) =>
                      one.users > 1 || !one.user ? (
                        `${many(one.users, "other")}`
                      ) : (
                        <a href={`/ui/jobs?user=${one.user}`}>{one.user}</a>
                      ),
                    wide: true,
                  },
                  { name: "GPUs", of: (one) => count(one.gpus_held), right: true },
                  {
                    name: "Of their share",
                    of: (one) => (one.times_share ? `${one.times_share.toFixed(1)} ×` : ""),
                    right: true,
                  },
                  { name: "Run", of: (one) => count(one.running), right: true },
                  { name: "Wait", of: (one) => count(one.waiting), right: true },
                  {
                    name: "Oldest",
                    of: (one) => (one.oldest_wait_s ? span(one.oldest_wait_s) : ""),
                    right: true,
                  },
                  {
                    name: "Stopped for others",
                    of: (one) => (one.stopped ? `${count(one.stopped)}, ${span(one.lost_s)} lost` : ""),
                    right: true,
                  },
                ]}
              />
            ) : null}
          </>
        )}
      </Shown>
    </Card>
  );
}

function Used() {
  const asked = useAsked<UsageAnswer>("/usage", { by: "user", window_s: 7 * 86400, limit: 20 }, 60_000);
  return (
    <Card title="Used in the last 7 days">
      <Shown of={asked}>
        {(found) =>
          found.usage.length ? (
            <Table
              caption="Usage by user"
              rows={found.usage}
              id={(one) => one.name}
              columns={[
                { name: "User", of: (one) => one.name, wide: true },
                { name: "GPU-hours held", of: (one) => hours(one.gpu_hours, "held"), right: true },
                { name: "really used", of: (one) => hours(one.gpu_hours, "used"), right: true },
                { name: "Core-hours", of: (one) => hours(one.core_hours, "held"), right: true },
                { name: "Attempts", of: (one) => count(one.attempts), right: true },
              ]}
            />
          ) : (
            <p class="faint">Nothing has ended in these days.</p>
          )
        }
      </Shown>
    </Card>
  );
}

function hours(of: unknown, name: string): string {
  const value = (of as Record<string, number | null>)[name];
  return typeof value === "number" ? value.toFixed(value < 10 ? 2 : 0) : "";
}

function Quotas() {
  const asked = useAsked<QuotaList>("/quotas", {}, 15_000);
  return (
    <Card title="Quotas">
      <Shown of={asked}>
        {(found) =>
          found.quotas.length ? (
            <Table
              caption="Quotas and what is used of them"
              rows={found.quotas.map((one, n) => ({ ...one, n }))}
              id={(one) => String(one.n)}
              columns={[
                { name: "Whose", of: (one) => `${one.kind} ${one.name}`, wide: true },
                {
                  name: "GPUs",
                  of: (one) =>
                    !one.gpus_limit ? (
                      count(one.gpus_held)
                    ) : (
                      <Bar
                        part={one.gpus_held}
                        whole={one.gpus_limit}
                        label={`${count(one.gpus_held)} of ${count(one.gpus_limit)}`}
                      />
                    ),
                },
                {
                  name: "GPU-hours",
                  of: (one) =>
                    typeof one.gpu_hours_used !== "number"
                      ? ""
                      : `${one.gpu_hours_used.toFixed(1)}${one.gpu_hours_hard ? ` of ${one.gpu_hours_hard} (${percent(one.gpu_hours_used, one.gpu_hours_hard)})` : ""}`,
                  right: true,
                },
                {
                  name: "Tasks",
                  of: (one) =>
                    `${count(one.running)}${(one.tasks_limit ?? null) === null ? "" : ` of ${count(one.tasks_limit)}`}`,
                  right: true,
                },
                { name: "Standing", of: (one) => one.standing },
              ]}
            />
          ) : (
            <p class="faint">The policy has none: everybody may hold what is free.</p>
          )
        }
      </Shown>
    </Card>
  );
}

export function Queue({ name }: { name: string }) {
  useEffect(() => look(["queues"]), []);
  const asked = useAsked<QueueDetail>(`/queues/${name}`, { limit: 100 });
  return (
    <Shown of={asked}>
      {(queue) => (
        <>
          <h1>{queue.name}</h1>
          <Lead>
            {many(queue.running, "task")} {queue.running === 1 ? "runs" : "run"}, {count(queue.waiting)}{" "}
            {queue.waiting === 1 ? "waits" : "wait"}
            {queue.oldest_wait_s ? `, the oldest for ${span(queue.oldest_wait_s)}` : ""}.
          </Lead>
          <Facts
            rows={[
              ["order", queue.policy],
              ["weight", queue.weight],
              ["GPUs held", count(queue.gpus_held)],
              ["GPUs at most", queue.gpus_limit ?? "no limit"],
              ["wait, half below", (queue.wait_p50_s ?? null) === null ? "" : span(queue.wait_p50_s)],
              ["nine of ten below", (queue.wait_p90_s ?? null) === null ? "" : span(queue.wait_p90_s)],
              ["starts a minute", (queue.starts_per_min_5m ?? 0).toFixed(1)],
              ["ends a minute", (queue.ends_per_min_5m ?? 0).toFixed(1)],
            ]}
          />
          {queue.line?.length ? (
            <Table
              caption="The line"
              rows={queue.line}
              id={(one) => `${one.job_id}/${one.task ?? ""}`}
              link={(one) => `/jobs/${one.job_id}`}
              columns={[
                { name: "Place", of: (one) => one.place, right: true },
                {
                  name: "Job",
                  of: (one) => <a href={`/ui/jobs/${one.job_id}?tab=why`}>{one.name || one.job_id}</a>,
                  wide: true,
                },
                { name: "User", of: (one) => one.user },
                { name: "Priority", of: (one) => one.priority, right: true },
                { name: "Tasks", of: (one) => count(one.tasks), right: true },
                { name: "Submitted", of: (one) => <Time at={one.submitted_at} /> },
              ]}
            />
          ) : (
            <Empty>Nobody stands in this line.</Empty>
          )}
        </>
      )}
    </Shown>
  );
}
