import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Cluster as Columns, History } from "../api.d.ts";
import { freeBy, heldShare, read, readRow, sorted, type WorkerRow } from "../cluster_rows.ts";
import { count, many, percent, span } from "../format.ts";
import { useAsked } from "../hub.ts";
import { hear, look } from "../live.ts";
import { WorkerMap } from "../map_view.tsx";
import type { Colouring } from "../paint.ts";
import { param, tune } from "../route.ts";
import { may } from "../session.ts";
import { Bar, type Column, Empty, Fault, Lead, Pick, State, Table } from "../ui.tsx";

const COLOURINGS: [Colouring, string][] = [
  ["held", "held"],
  ["used", "really used"],
  ["owner", "owner"],
  ["queue", "queue"],
  ["free", "free by"],
];
const PAGE = 50;
const WHOLE_MS = 1000;

export function Cluster() {
  const group = param("group");
  const asked = useAsked<Columns>("/cluster", { group }, 60_000);
  const rows = useSignal(new Map<string, WorkerRow>());
  const head = useSignal<Pick_<Columns, "headline" | "workers" | "totals"> | null>(null);
  // Counts up when rows changed: the map paints only those.
  const dirty = useSignal<string[] | null>(null);
  useEffect(() => look(["cluster"]), []);
  useEffect(() => {
    if (!asked.found) return;
    rows.value = read(asked.found);
    head.value = asked.found;
    dirty.value = null;
  }, [asked.found]);
  // All of it is asked for once in a while, however much changes: a cluster in uproar is not asked ten times a second.
  const due = useRef(0);
  const whole = () => {
    if (due.current) return;
    due.current = window.setTimeout(() => {
      due.current = 0;
      asked.again();
    }, WHOLE_MS);
  };
  useEffect(() => () => window.clearTimeout(due.current), []);
  useEffect(
    () =>
      hear((frame) => {
        if (!frame) return whole();
        const next = rows.value;
        const states = asked.found?.states ?? [];
        const known = frame.rows.every((cells) => next.has(String(cells[0]))) && !frame.gone.length;
        // By which group a new one counts is not in a frame.
        if (group && !known) whole();
        for (const id of frame.gone) next.delete(id);
        for (const cells of frame.rows) {
          const id = String(cells[0]);
          next.set(id, readRow(cells, states, next.get(id)?.group ?? ""));
        }
        head.value = frame as unknown as Columns;
        rows.value = known ? next : new Map(next);
        dirty.value = known ? frame.rows.map((cells) => String(cells[0])) : null;
      }),
    [group, asked.found],
  );
  if (!head.value) return asked.fault ? <Fault of={asked.fault} /> : <p class="faint">Asking the hub …</p>;
  return (
    <>
      <h1 class="unseen">Cluster</h1>
      <Lead>{head.value.headline}</Lead>
      {rows.value.size === 0 ? <First /> : <Tiles of={head.value} />}
      {rows.value.size === 0 ? null : (
        <>
          <div class="filters">
            <Pick
              label="Colour"
              of={COLOURINGS}
              chosen={param("colour") || "held"}
              onPick={(to) => tune({ colour: to === "held" ? null : to }, true)}
            />
            <Pick
              label="Group by"
              of={[
                ["", "kind"],
                ["rack", "rack"],
                ["zone", "zone"],
              ]}
              chosen={group}
              onPick={(to) => tune({ group: to || null }, true)}
            />
          </div>
          <WorkerMap
            rows={rows.value}
            dirty={dirty.value}
            by={(param("colour") || "held") as Colouring}
            grouped={Boolean(group)}
          />
          <Workers rows={rows.value} tick={dirty.value} />
        </>
      )}
    </>
  );
}

type Pick_<T, K extends keyof T> = { [P in K]: T[P] };

function Tiles({ of }: { of: Pick_<Columns, "workers" | "totals"> }) {
  const t = of.totals;
  const gone = (of.workers.offline ?? 0) + (of.workers.quarantined ?? 0);
  const past = useAsked<History>("/history", {}, 60_000).found;
  const strange = (of.workers.not_ready ?? 0) + (of.workers.draining ?? 0);
  return (
    <div class="tiles">
      <div class="tile">
        <span>held</span>
        <Spark of={past} name={t.gpus ? "gpus_held" : "cores_held"} whole={t.gpus ? "gpus" : "cores"} />
        <strong>{t.gpus ? percent(t.held / 1000, t.gpus) : percent(t.cpu_used, t.cpu)}</strong>
        <small>
          {t.gpus ? `${count(t.held / 1000)} of ${many(t.gpus, "GPU")}` : `of ${many(t.cpu / 1000, "core")}`}
        </small>
      </div>
      <div class="tile">
        <span>idle though held</span>
        <strong>{count(t.idle)}</strong>
        <small>{t.idle ? "cards, for 10 min or more" : "no card is held in vain"}</small>
      </div>
      <div class="tile">
        <span>run</span>
        <Spark of={past} name="running" />
        <strong>{count(t.tasks)}</strong>
        <small>{t.tasks === 1 ? "task" : "tasks"}</small>
      </div>
      <div class="tile">
        <span>wait</span>
        <Spark of={past} name="waiting" />
        <strong>{count(t.waiting)}</strong>
        <small>
          <a href="/ui/jobs?state=pending">which?</a>
        </small>
      </div>
      <div class={gone ? "tile tile-bad" : "tile"}>
        <span>trouble</span>
        <strong>{count(gone + strange)}</strong>
        <small>{gone + strange ? `${gone} away, ${strange} take no work` : "every worker is well"}</small>
      </div>
    </div>
  );
}

// The last hours of a number, as a line; a gap where no hub looked.
function Spark({ of, name, whole }: { of: History | null; name: string; whole?: string }) {
  const values = of?.series[name] ?? [];
  const seen = values.filter((one): one is number => one !== null);
  if (seen.length < 2) return null;
  const most = Math.max(...(whole ? (of?.series[whole] ?? []) : seen).map((one) => one ?? 0), 1e-9);
  let path = "";
  values.forEach((one, at) => {
    if (one === null) return;
    const begins = at === 0 || values[at - 1] === null;
    path += `${begins ? "M" : "L"}${((at / (values.length - 1)) * 100).toFixed(1)} ${(23 - (22 * one) / most).toFixed(1)}`;
  });
  const words = `since ${new Date(of?.from ?? 0).toLocaleString()}: ${count(Math.min(...seen))} to ${count(Math.max(...seen))}`;
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={words}>
      <path d={path} />
    </svg>
  );
}

const COLUMNS: Column<WorkerRow>[] = [
  { name: "Worker", of: (row) => <a href={`/ui/workers/${row.id}`}>{row.id}</a>, wide: true },
  { name: "State", of: (row) => <State of={row.state} /> },
  { name: "Kind", of: (row) => row.kind },
  {
    name: "Held",
    of: (row) => (
      <Bar
        part={heldShare(row)}
        whole={1}
        label={
          row.gpus
            ? `${count(row.held / 1000)}/${row.gpus} GPUs`
            : `${count(row.cpuUsed / 1000)}/${count(row.cpu / 1000)} cores`
        }
      />
    ),
  },
  {
    name: "Really used",
    of: (row) =>
      row.used < 0 ? "" : `${Math.round(row.used / 10)} %${row.idle ? `, ${row.idle} idle` : ""}`,
    right: true,
  },
  { name: "Tasks", of: (row) => count(row.tasks), right: true },
  {
    name: "Free by",
    of: (row) => {
      const by = freeBy(row);
      return by === "now" ? "" : by === "unknown" ? "no limit" : `in ${span(by)}`;
    },
    right: true,
  },
  { name: "Most held by", of: (row) => row.user },
];

const SORTS: [string, string][] = [
  ["id", "name"],
  ["-held", "most held"],
  ["held", "least held"],
  ["-tasks", "most tasks"],
  ["state", "state"],
  ["user", "owner"],
];

function Workers({ rows, tick }: { rows: Map<string, WorkerRow>; tick: string[] | null }) {
  const q = param("q");
  const by = param("sort") || "id";
  const from = Math.max(0, Number(param("from")) || 0);
  const listed = useMemo(() => sorted([...rows.values()], by, q), [rows, tick, by, q]);
  const shown = listed.slice(from, from + PAGE);
  return (
    <section>
      <div class="filters">
        <label>
          Find{" "}
          <input
            type="search"
            data-find=""
            value={q}
            placeholder="name, kind, owner, state"
            onInput={(event) => tune({ q: event.currentTarget.value || null, from: null }, true)}
          />
        </label>
        <Pick
          label="Order"
          of={SORTS}
          chosen={by}
          onPick={(to) => tune({ sort: to === "id" ? null : to, from: null }, true)}
        />
        <span class="faint">
          {listed.length > PAGE
            ? `${count(from + 1)}–${count(from + shown.length)} of ${count(listed.length)}`
            : many(listed.length, "worker")}
        </span>
        {from > 0 ? (
          <button
            type="button"
            onClick={() => tune({ from: from > PAGE ? String(from - PAGE) : null }, true)}
          >
            Before
          </button>
        ) : null}
        {from + PAGE < listed.length ? (
          <button type="button" onClick={() => tune({ from: String(from + PAGE) }, true)}>
            More
          </button>
        ) : null}
      </div>
      {shown.length ? (
        <Table
          caption="Workers"
          columns={COLUMNS}
          rows={shown}
          id={(row) => row.id}
          link={(row) => `/workers/${row.id}`}
        />
      ) : (
        <Empty>No worker is like that.</Empty>
      )}
    </section>
  );
}

// A cluster without machines: what makes one.
function First() {
  const said = useComputed(() => may("admin"));
  return (
    <Empty command="dray worker start">
      {said.value
        ? "No machine has joined yet. On this machine, and with a join token (dray token create --scope join) on any other:"
        : "No machine has joined yet. An admin adds one:"}
    </Empty>
  );
}
