// Numbers, spans and times as people read them. Pure: the time that it is comes in.

// What an answer leaves out is nothing.
type Maybe = number | null | undefined;

export function span(seconds: Maybe): string {
  const s = Math.max(0, Math.round(seconds ?? 0));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) {
    const minutes = Math.floor((s % 3600) / 60);
    return minutes && s < 36000 ? `${Math.floor(s / 3600)} h ${minutes} min` : `${Math.floor(s / 3600)} h`;
  }
  const hours = Math.floor((s % 86400) / 3600);
  return hours && s < 864000 ? `${Math.floor(s / 86400)} d ${hours} h` : `${Math.floor(s / 86400)} d`;
}

export function ago(at: string | null | undefined, nowMs: number): string {
  if (!at) return "";
  const seconds = (nowMs - Date.parse(at)) / 1000;
  return seconds < -1 ? `in ${span(-seconds)}` : seconds < 5 ? "just now" : `${span(seconds)} ago`;
}

export function count(given: Maybe): string {
  const value = given ?? 0;
  return Math.abs(value) < 10000 ? String(value) : value.toLocaleString("en-US");
}

export function bytes(given: Maybe): string {
  const value = given ?? 0;
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let shown = value / 1024;
  let unit = 0;
  while (shown >= 1024 && unit < units.length - 1) {
    shown /= 1024;
    unit += 1;
  }
  return `${shown < 10 ? shown.toFixed(1) : Math.round(shown)} ${units[unit]}`;
}

export function many(value: Maybe, one: string, more = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : more}`;
}

export function percent(part: Maybe, whole: Maybe): string {
  return whole ? `${Math.round((100 * (part ?? 0)) / whole)} %` : "–";
}

// "7 s", "12 min", or both ends of an estimate.
export function within(p50: Maybe, p90: Maybe): string {
  if (p50 === null || p50 === undefined) return "";
  return p90 && p90 > p50 * 1.1 ? `~${span(p50)}, p90 ${span(p90)}` : `~${span(p50)}`;
}

// A command as one line that a shell would read the same way.
export function shellLine(words: string[]): string {
  return words.map((w) => (/^[\w@%+=:,./-]+$/.test(w) ? w : `'${w.replaceAll("'", "'\\''")}'`)).join(" ");
}
