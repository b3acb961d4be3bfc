// The change that the hub proposes, as fields of the API. Pure. What this does not know is for `dray set`.
const UNITS: Record<string, number> = { "": 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };

export function bytesOf(text: string): number | null {
  const found = /^([0-9.]+)\s*([kmgt]?)(?:i?b)?$/i.exec(text.trim());
  return found ? Math.round(Number(found[1]) * (UNITS[(found[2] ?? "").toLowerCase()] ?? 1)) : null;
}

export function fieldsOf(assign: string): Record<string, unknown> | null {
  const at = assign.indexOf("=");
  if (at < 0) return null;
  const key = assign.slice(0, at);
  const value = assign.slice(at + 1);
  const number = Number(value);
  switch (key) {
    case "gpus":
    case "gpus_per_node":
      return Number.isInteger(number) ? { gpu_count: number } : { gpu_milli: Math.round(1000 * number) };
    case "cpus":
      return Number.isFinite(number) ? { cpu_milli: Math.round(1000 * number) } : null;
    case "mem":
      return bytesOf(value) === null ? null : { memory_bytes: bytesOf(value) };
    case "vram":
      return bytesOf(value) === null ? null : { vram_per_gpu_bytes: bytesOf(value) };
    case "min_vram_gb":
      return Number.isFinite(number) ? { min_vram_gb: number } : null;
    case "gpu_type":
      return { gpu_type: value };
    case "backend":
      return { gpu_backend: value };
    case "priority":
      return Number.isInteger(number) ? { priority: number } : null;
    case "require":
      return { require: value ? value.split(",") : [] };
    default:
      return null;
  }
}
