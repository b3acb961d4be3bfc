// What a form asks for, as a spec. Pure.
import { bytesOf } from "./fix.ts";

export type Fields = Record<string, string>;
export const FIELDS: [string, string, string][] = [
  ["name", "Name", ""],
  ["queue", "Queue", "default"],
  ["gpus", "GPUs", "0"],
  ["gpu_type", "of type", "any"],
  ["cpus", "Cores", "1"],
  ["memory", "Memory", "such as 16G"],
  ["nodes", "on so many machines", "1"],
  ["time", "Time limit", "such as 2h"],
  ["priority", "Priority", "0"],
  ["array", "Once per index", "such as 0-9"],
];

export function secondsOf(text: string): number | null {
  const found = /^([0-9.]+)\s*(s|m|min|h|d|)$/.exec(text.trim());
  if (!found) return null;
  return Number(found[1]) * ({ s: 1, "": 1, m: 60, min: 60, h: 3600, d: 86400 }[found[2] ?? ""] ?? 1);
}

// The spec, and what is wrong with the fields.
export function draft(fields: Fields): { spec: Record<string, unknown>; faults: string[] } {
  const spec: Record<string, unknown> = {};
  const faults: string[] = [];
  const given = (name: string) => (fields[name] ?? "").trim();
  const number = (name: string, to: (value: number) => [string, unknown], what: string) => {
    if (!given(name)) return;
    const value = Number(given(name));
    if (Number.isFinite(value) && value >= 0) {
      const [key, made] = to(value);
      if (made !== null) spec[key] = made;
    } else faults.push(`${what} must be a number, not ${given(name)}`);
  };
  if (given("command")) spec.command = ["sh", "-c", given("command")];
  else faults.push("a job needs a command");
  if (given("name")) spec.name = given("name");
  if (given("queue")) spec.queue = given("queue");
  number(
    "gpus",
    (n) =>
      n === 0
        ? ["gpu_count", null]
        : Number.isInteger(n)
          ? ["gpu_count", n]
          : ["gpu_milli", Math.round(n * 1000)],
    "GPUs",
  );
  if (given("gpu_type")) spec.gpu_type = given("gpu_type");
  number("cpus", (n) => ["cpu_milli", Math.round(n * 1000)], "Cores");
  number("nodes", (n) => ["node_count", n], "Machines");
  if (given("priority")) {
    if (/^-?\d+$/.test(given("priority"))) spec.priority = Number(given("priority"));
    else faults.push(`Priority must be a whole number, not ${given("priority")}`);
  }
  if (given("memory")) {
    const bytes = bytesOf(given("memory"));
    if (bytes === null) faults.push(`Memory is written like 16G, not ${given("memory")}`);
    else spec.memory_bytes = bytes;
  }
  if (given("time")) {
    const seconds = secondsOf(given("time"));
    if (seconds === null) faults.push(`A time limit is written like 2h or 30m, not ${given("time")}`);
    else spec.max_runtime_s = seconds;
  }
  const range = /^(\d+)-(\d+)$/.exec(given("array"));
  // A range may be as long as one likes, a list may not.
  if (range) spec.array = { first: Number(range[1]), last: Number(range[2]) };
  else if (given("array")) spec.array = { indices: given("array") };
  return { spec, faults };
}

// What is the hub's own, or names the job that it was.
const NOT_ASKED = ["id", "user_id", "rendered", "snapshot_sha"];

export function again(spec: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(spec).filter(([key, value]) => !NOT_ASKED.includes(key) && value !== null),
  );
}
