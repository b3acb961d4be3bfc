// Where the page is: the address is the state. Every view, filter and selection is in it.
import { computed, signal } from "@preact/signals";

export const ROOT = "/ui";
const here = signal(window.location.pathname + window.location.search);

export const path = computed(() => {
  const bare = here.value.split("?")[0] ?? "";
  return bare.startsWith(ROOT) ? bare.slice(ROOT.length).replace(/\/+$/, "") || "/" : "/";
});
export const query = computed(() => new URLSearchParams(here.value.split("?")[1] ?? ""));

export function go(to: string, replace = false): void {
  const full = ROOT + to;
  if (full === here.value) return;
  if (replace) window.history.replaceState(null, "", full);
  else window.history.pushState(null, "", full);
  here.value = full;
  if (!replace) window.scrollTo(0, 0);
}

// Change some parameters of this address; an empty one is left out.
export function tune(changes: Record<string, string | null>, replace = false): void {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const text = next.toString();
  go(path.value + (text ? `?${text}` : ""), replace);
}

export function param(name: string): string {
  return query.value.get(name) ?? "";
}

window.addEventListener("popstate", () => {
  here.value = window.location.pathname + window.location.search;
});

// Links stay in the page unless somebody asks for another tab.
export function follow(event: MouseEvent): void {
  const link = (event.target as Element | null)?.closest?.("a");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey)
    return;
  const target = link.getAttribute("href");
  if (!target?.startsWith(`${ROOT}/`) || link.target) return;
  event.preventDefault();
  go(target.slice(ROOT.length));
}
