// The map of workers on its canvas. What a colour says, a pattern or a letter says as well, and the table in words.
import { freeBy, GONE, heldShare, type WorkerRow } from "./cluster_rows.ts";
import { type Layout, spot } from "./map.ts";

export type Colouring = "held" | "used" | "owner" | "queue" | "free";

const HUES = [212, 28, 150, 280, 340, 60, 180, 0, 240, 100];

export function hue(name: string): number {
  let sum = 0;
  for (const char of name) sum = (sum * 31 + char.charCodeAt(0)) >>> 0;
  return HUES[sum % HUES.length] ?? 0;
}

export type Palette = {
  ground: string;
  raised: string;
  line: string;
  text: string;
  faint: string;
  work: string;
  care: string;
  bad: string;
};

export function palette(of: Element): Palette {
  // Colours as the page has them now, whichever theme it wears.
  const probe = document.createElement("span");
  of.append(probe);
  const read = (name: string) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const found = {
    ground: read("ground"),
    raised: read("raised"),
    line: read("line"),
    text: read("text"),
    faint: read("faint"),
    work: read("work"),
    care: read("care"),
    bad: read("bad"),
  };
  probe.remove();
  return found;
}

function fillOf(row: WorkerRow, by: Colouring, colours: Palette): { share: number; colour: string } {
  const held = heldShare(row);
  if (by === "used") {
    return { share: row.used < 0 ? 0 : (held * row.used) / 1000, colour: colours.work };
  }
  if (by === "free") {
    const left = freeBy(row);
    if (left === "now") return { share: 0, colour: colours.work };
    return { share: left === "unknown" ? 1 : Math.min(1, left / 86400), colour: colours.work };
  }
  if (by === "held") return { share: held, colour: colours.work };
  const name = by === "owner" ? row.user : row.queue;
  return { share: held, colour: name ? `hsl(${hue(name)} 55% 52%)` : colours.work };
}

export function paintOne(
  draw: CanvasRenderingContext2D,
  layout: Layout,
  at: number,
  row: WorkerRow,
  by: Colouring,
  colours: Palette,
): void {
  const { x, y } = spot(layout, at);
  const side = layout.side;
  draw.fillStyle = colours.ground;
  draw.fillRect(x - 1, y - 1, side + 2, side + 2);
  draw.fillStyle = colours.line;
  draw.fillRect(x, y, side, side);
  draw.fillStyle = colours.raised;
  draw.fillRect(x + 1, y + 1, side - 2, side - 2);
  const { share, colour } = fillOf(row, by, colours);
  const height = Math.round((side - 2) * share);
  if (share > 0 && !GONE.includes(row.state)) {
    draw.fillStyle = colour;
    draw.fillRect(x + 1, y + side - 1 - Math.max(1, height), side - 2, Math.max(1, height));
  }
  draw.lineWidth = 1.5;
  if (GONE.includes(row.state)) {
    draw.strokeStyle = colours.bad;
    draw.beginPath();
    draw.moveTo(x + 2, y + 2);
    draw.lineTo(x + side - 2, y + side - 2);
    draw.moveTo(x + side - 2, y + 2);
    draw.lineTo(x + 2, y + side - 2);
    draw.stroke();
  } else if (row.state === "draining" || row.state === "not_ready") {
    draw.strokeStyle = colours.care;
    draw.beginPath();
    for (let step = 4; step < side * 2; step += 6) {
      draw.moveTo(x + Math.max(1, step - side + 1), y + Math.min(side - 1, step));
      draw.lineTo(x + Math.min(side - 1, step), y + Math.max(1, step - side + 1));
    }
    draw.stroke();
  }
  if (row.idle > 0) {
    const dot = Math.max(2, Math.round(side / 5));
    draw.fillStyle = colours.care;
    draw.fillRect(x + side - dot - 1, y + 1, dot, dot);
  }
}

export function paintLabels(
  draw: CanvasRenderingContext2D,
  layout: Layout,
  said: string[],
  colours: Palette,
): void {
  draw.font = "13px system-ui, 'Open Sans', sans-serif";
  draw.textBaseline = "top";
  layout.groups.forEach((group, n) => {
    draw.fillStyle = colours.text;
    draw.fillText(group.name, 0, group.top + 1);
    const width = draw.measureText(`${group.name}  `).width;
    draw.fillStyle = colours.faint;
    draw.fillText(said[n] ?? "", width, group.top + 1);
  });
}

export function paintCursor(
  draw: CanvasRenderingContext2D,
  layout: Layout,
  at: number,
  colours: Palette,
): void {
  const { x, y } = spot(layout, at);
  draw.strokeStyle = colours.text;
  draw.lineWidth = 2;
  draw.strokeRect(x, y, layout.side, layout.side);
}
