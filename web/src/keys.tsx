// Keys: single letters that can be switched off, rows under a cursor, and the list of all of them.
import { signal } from "@preact/signals";
import { go, path } from "./route.ts";
import { Dialog } from "./ui.tsx";

const KEPT = "dray.keys";
export const letters = signal(window.localStorage.getItem(KEPT) !== "off");
export const help = signal(false);

export function switchLetters(on: boolean): void {
  letters.value = on;
  window.localStorage.setItem(KEPT, on ? "on" : "off");
}

const PLACES: Record<string, string> = {
  c: "/",
  j: "/jobs",
  t: "/timeline",
  f: "/failures",
  q: "/queues",
  s: "/services",
  n: "/submit",
  w: "/whatif",
  h: "/hub",
};
const LIST: [string, string][] = [
  ["/", "find"],
  ["g c", "cluster"],
  ["g j", "jobs"],
  ["g t", "timeline"],
  ["g f", "failures"],
  ["g q", "queues and people"],
  ["g s", "services"],
  ["g n", "submit a job"],
  ["g w", "what if"],
  ["j k", "next row, row before"],
  ["Enter", "open the row"],
  ["x", "tick the row"],
  ["w", "why does this job wait"],
  ["c", "cancel … (asks first)"],
  ["d", "drain … (asks first)"],
  ["Esc", "close"],
  ["?", "this list"],
];

let going = false;

function typing(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return Boolean(
    element?.closest?.("input, textarea, select, [contenteditable], dialog, [role=application]"),
  );
}

function rows(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>("tr[data-row]")];
}

function step(by: number): void {
  const all = rows();
  const at = all.findIndex((row) => row.hasAttribute("data-cursor"));
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
  if (at >= 0) all[at]?.removeAttribute("data-cursor");
  next?.setAttribute("data-cursor", "");
  next?.querySelector<HTMLElement>("a")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function press(key: string): void {
  const button = document.querySelector<HTMLElement>(`[data-key="${key}"]`);
  button?.click();
}

export function listen(event: KeyboardEvent): void {
  if (!letters.value || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const key = event.key;
  if (going) {
    going = false;
    const place = PLACES[key];
    if (place) {
      event.preventDefault();
      go(place);
    }
    return;
  }
  if (key === "g") going = true;
  else if (key === "?") help.value = true;
  else if (key === "/") document.querySelector<HTMLElement>("[data-find]")?.focus();
  else if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (key === "x") document.querySelector<HTMLElement>("tr[data-cursor] input[type=checkbox]")?.click();
  else if (key === "w" && path.value.startsWith("/jobs/")) go(`${path.value}?tab=why`);
  else if (key === "c" || key === "d") press(key);
  else return;
  event.preventDefault();
}

export function Keys() {
  if (!help.value) return null;
  const close = () => {
    help.value = false;
  };
  return (
    <Dialog title="Keys" onClose={close}>
      <dl class="keys">
        {LIST.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <label>
        <input
          type="checkbox"
          checked={letters.value}
          onChange={(event) => switchLetters(event.currentTarget.checked)}
        />{" "}
        single letters do this
      </label>
    </Dialog>
  );
}
