// Light or dark: as the system says, unless somebody chose.
import { signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const KEPT = "dray.theme";
const kept = window.localStorage.getItem(KEPT);

export const theme = signal<Theme>(kept === "light" || kept === "dark" ? kept : "auto");

export function choose(next: Theme): void {
  theme.value = next;
  window.localStorage.setItem(KEPT, next);
  wear();
}

export function wear(): void {
  document.documentElement.dataset.theme = theme.value;
}
