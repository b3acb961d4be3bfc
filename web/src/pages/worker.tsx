import { useEffect } from "preact/hooks";
import type { CardHolder, Card as GpuCard, WorkerDetail, WorkerDocument } from "../api.d.ts";
import { propose } from "../changes.tsx";
import { bytes, count, many, percent, span } from "../format.ts";
import { ask, useAsked } from "../hub.ts";
import { look } from "../live.ts";
import { may } from "../session.ts";
import { Card, Empty, Facts, Lead, Shown, State, Table, Time } from "../ui.tsx";

export function Worker({ id }: { id: string }) {
  useEffect(() => look(["cluster", "jobs"]), []);
  const asked = useAsked<WorkerDetail>(`/workers/${id}`, {}, 3000);
  return <Shown of={asked}>{(worker) => <Whole worker={worker} />}</Shown>;
}

function Whole({ worker }: { worker: WorkerDetail }) {
  const held = (worker.cards ?? []).reduce((sum, card) => sum + (card.held_milli ?? 0), 0) / 1000;
  const state = worker.draining && worker.status !== "offline" ? "draining" : worker.status;
  return (
    <>
      <header class="title">
        <h1>{worker.id}</h1>
        <State of={state} />
        {may("admin") ? <Buttons worker={worker} /> : null}
      </header>
      <Lead>{say(worker, held)}</Lead>
      <Facts
        rows={[
          ["host", worker.hostname],
          ["address", worker.address],
          ["cores", count(worker.cpu_count)],
          ["memory", `${count(Math.round(worker.memory_gb ?? 0))} GB`],
          ["slots", worker.total_slots],
          ["last word", <Time at={worker.last_heartbeat} />],
          ["joined", <Time at={worker.registered_at} />],
          ["failures in a row", worker.faults || ""],
          ["drained by", worker.drained_by],
          ["reason", worker.drain_reason],
          ["until", worker.drain_until ? <Time at={worker.drain_until} /> : ""],
          [
            "labels",
            Object.entries(worker.labels ?? {})
              .map(([key, value]) => `${key}=${value}`)
              .join(", "),
          ],
        ]}
      />
      {worker.cards?.length ? <Cards cards={worker.cards} /> : null}
      <Card title="What runs here">
        {worker.jobs?.length ? (
          <Table
            caption="Tasks on this worker"
            rows={worker.jobs}
            id={(one) => one.task_id}
            columns={[
              { name: "State", of: (one) => <State of={one.status ?? "running"} /> },
              {
                name: "Task",
                of: (one) => (
                  <a href={`/ui/jobs/${one.task_id.split("/")[0]}`}>{one.job_name || one.task_id}</a>
                ),
                wide: true,
              },
              { name: "User", of: (one) => one.user },
              { name: "Started", of: (one) => <Time at={one.started_at} /> },
            ]}
          />
        ) : (
          <p class="faint">Nothing that you may see.</p>
        )}
        <p>
          <a href={`/ui/jobs?worker=${worker.id}`}>All jobs that were here</a>
        </p>
      </Card>
      {worker.quarantined?.length ? (
        <Empty>Runs here and is unknown to the hub: {worker.quarantined.join(", ")}</Empty>
      ) : null}
    </>
  );
}

function say(worker: WorkerDetail, held: number): string {
  const what = worker.gpu_count
    ? `${count(held)} of ${many(worker.gpu_count, "GPU")} held`
    : many(worker.active_jobs, "task");
  if (worker.status === "offline") return `Away: ${worker.state_detail || "nobody heard from it"}.`;
  if (worker.draining)
    return `Takes no new work${worker.drain_reason ? ` (${worker.drain_reason})` : ""}; ${what}.`;
  return `${what}${worker.state_detail ? `; ${worker.state_detail}` : ""}.`;
}

function Cards({ cards }: { cards: GpuCard[] }) {
  return (
    <Card title="Cards">
      <Table
        caption="Cards, and who holds how much of each"
        rows={cards}
        id={(card) => String(card.index)}
        columns={[
          { name: "Card", of: (card) => `${card.index} ${card.model}`, wide: true },
          { name: "Memory", of: (card) => (card.vram_bytes ? bytes(card.vram_bytes) : ""), right: true },
          { name: "Held", of: (card) => percent(card.held_milli, 1000), right: true },
          {
            name: "By",
            of: (card) => <Holders of={card.holders ?? []} healthy={card.healthy !== false} />,
            wide: true,
          },
        ]}
      />
    </Card>
  );
}

function Holders({ of, healthy }: { of: CardHolder[]; healthy: boolean }) {
  if (!healthy) return <State of="offline" />;
  if (!of.length) return <span class="faint">free</span>;
  return (
    <ul class="bare">
      {of.map((one) => (
        <li key={one.task_id}>
          {one.task_id ? (
            <a href={`/ui/jobs/${one.task_id.split("/")[0]}`}>{one.job_name || one.task_id}</a>
          ) : (
            "somebody else"
          )}{" "}
          {one.user}
          {typeof one.used !== "number" ? "" : `, ${Math.round(one.used * 100)} % used`}
          {one.idle_s ? `, idle for ${span(one.idle_s)}` : ""}
          {one.until ? (
            <>
              , until <Time at={one.until} />
            </>
          ) : (
            ""
          )}
        </li>
      ))}
    </ul>
  );
}

function Buttons({ worker }: { worker: WorkerDetail }) {
  const path = `/workers/${worker.id}`;
  const resume = async () => {
    await ask<WorkerDocument>("POST", `${path}/resume`);
    return <p>{worker.id} takes work again.</p>;
  };
  const drain = async () => {
    await ask<WorkerDocument>("POST", `${path}/drain`, { body: { reason: "by the dashboard" } });
    return <p>{worker.id} takes no new work; what runs there goes on.</p>;
  };
  if (worker.draining) {
    return (
      <button
        type="button"
        onClick={() =>
          propose({
            title: "Resume",
            preview: async () => <p>{worker.id} takes new work again.</p>,
            run: resume,
            undo: { name: "Undo: drain", run: drain },
          })
        }
      >
        Resume
      </button>
    );
  }
  return (
    <button
      type="button"
      data-key="d"
      onClick={() =>
        propose({
          title: "Drain",
          preview: async () => {
            const now = await ask<WorkerDetail>("GET", path);
            return (
              <p>
                {worker.id} takes no new work.{" "}
                {now.active_jobs
                  ? `${many(now.active_jobs, "task")} there ${now.active_jobs === 1 ? "goes" : "go"} on to the end.`
                  : "Nothing runs there."}
              </p>
            );
          },
          run: drain,
          undo: { name: "Undo: resume", run: resume },
        })
      }
    >
      Drain
    </button>
  );
}
