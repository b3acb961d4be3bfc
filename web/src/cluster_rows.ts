// Workers as the cluster's columns and frames tell them. Pure.
import type { Cluster } from "./api.d.ts";

export type WorkerRow = {
  id: string;
  kind: string;
  state: string;
  gpus: number;
  held: number;
  cpu: number;
  cpuUsed: number;
  tasks: number;
  free: number;
  used: number;
  idle: number;
  user: string;
  queue: string;
  group: string;
};

export const GONE = ["offline", "quarantined"];

export function read(of: Cluster): Map<string, WorkerRow> {
  const c = of.columns;
  const found = new Map<string, WorkerRow>();
  c.id.forEach((id, n) => {
    found.set(id, {
      id,
      kind: of.kinds[c.kind[n] ?? 0] ?? "",
      state: of.states[c.state[n] ?? 0] ?? "",
      gpus: c.gpus[n] ?? 0,
      held: c.held[n] ?? 0,
      cpu: c.cpu[n] ?? 0,
      cpuUsed: c.cpu_used[n] ?? 0,
      tasks: c.tasks[n] ?? 0,
      free: c.free_s[n] ?? 0,
      used: c.used[n] ?? -1,
      idle: c.idle[n] ?? 0,
      user: of.users[c.user[n] ?? 0] ?? "",
      queue: of.queues[c.queue[n] ?? 0] ?? "",
      group: c.group?.[n] === undefined ? "" : (of.groups[c.group[n] ?? 0] ?? ""),
    });
  });
  return found;
}

// One row of a frame, whose cells are in the order of the columns.
export function readRow(cells: unknown[], states: string[], group: string): WorkerRow {
  const number = (at: number) => Number(cells[at] ?? 0);
  const text = (at: number) => String(cells[at] ?? "");
  return {
    id: text(0),
    kind: text(1),
    state: states[number(2)] ?? "",
    gpus: number(3),
    held: number(4),
    cpu: number(5),
    cpuUsed: number(6),
    tasks: number(7),
    free: number(8),
    used: number(9),
    idle: number(10),
    user: text(11),
    queue: text(12),
    group,
  };
}

// How much of a worker is held, of its cards or, where it has none, of its cores: 0 to 1.
export function heldShare(row: WorkerRow): number {
  if (row.gpus) return row.held / 1000 / row.gpus;
  return row.cpu ? Math.min(1, row.cpuUsed / row.cpu) : 0;
}

export type Sort = "id" | "state" | "held" | "used" | "tasks" | "free" | "user";

export function sorted(rows: WorkerRow[], by: string, q: string): WorkerRow[] {
  const wanted = q.toLowerCase();
  const kept = wanted
    ? rows.filter((row) =>
        `${row.id} ${row.kind} ${row.user} ${row.state} ${row.queue}`.toLowerCase().includes(wanted),
      )
    : [...rows];
  const down = by.startsWith("-");
  const name = by.replace("-", "");
  const key = (row: WorkerRow): number | string =>
    name === "held"
      ? heldShare(row)
      : name in row
        ? (row[name as keyof WorkerRow] as number | string)
        : row.id;
  kept.sort((a, b) => {
    const x = key(a);
    const y = key(b);
    const order = x < y ? -1 : x > y ? 1 : a.id < b.id ? -1 : 1;
    return down ? -order : order;
  });
  return kept;
}

export function freeBy(row: WorkerRow): "now" | "unknown" | number {
  return row.free === 0 ? "now" : row.free < 0 ? "unknown" : row.free;
}
