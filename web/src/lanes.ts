// Where bars of a timeline stand. Pure: an answer in, rectangles out.
export type Bar = [number, number, number, string, string, string, number, string];
export type TimelineRow = { worker: string; kind: string; cards: number; bars: Bar[] };
export type Box = { x: number; y: number; width: number; height: number; bar: Bar; worker: string };
export type Sheet = { boxes: Box[]; labels: { worker: string; kind: string; y: number }[]; height: number };

export const LANE = 14;
export const HEAD = 18;
export const MOST_LANES = 6;

// Cards have a lane each; work that holds none is put into as few lanes as there is room for.
export function place(rows: TimelineRow[], from: number, to: number, width: number, nowMs = from): Sheet {
  const boxes: Box[] = [];
  const labels: Sheet["labels"] = [];
  const scale = width / Math.max(1, to - from);
  let top = 0;
  for (const row of rows) {
    labels.push({ worker: row.worker, kind: row.kind, y: top });
    top += HEAD;
    const free: number[] = [];
    let lanes = row.cards;
    for (const bar of [...row.bars].sort((a, b) => a[1] - b[1])) {
      // What runs has not ended, whatever was foreseen.
      const end = bar[3] === "runs" && bar[2] ? Math.max(bar[2], nowMs) : bar[2] || to;
      let lane = bar[0];
      if (lane < 0) {
        lane = free.findIndex((until) => until <= bar[1]);
        // Of many at once the last lane has the rest: the table names them all.
        if (lane < 0) lane = Math.min(free.length, MOST_LANES - 1);
        free[lane] = end;
        lane += row.cards;
      }
      lanes = Math.max(lanes, lane + 1);
      const x = Math.max(0, (bar[1] - from) * scale);
      const right = Math.min(width, (end - from) * scale);
      if (right < 0 || x > width) continue;
      boxes.push({
        x,
        y: top + lane * LANE,
        width: Math.max(1, right - x),
        height: LANE - 2,
        bar,
        worker: row.worker,
      });
    }
    top += Math.max(1, lanes) * LANE + 8;
  }
  return { boxes, labels, height: top };
}

// Moments for the axis: as many as fit, at round times of the viewer's own clock.
export function ticks(from: number, to: number, width: number): number[] {
  const steps = [1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880].map((minutes) => minutes * 60_000);
  const step = steps.find((one) => ((to - from) / one) * 80 < width) ?? 7 * 86_400_000;
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const found: number[] = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at < to; at += step) found.push(at);
  return found;
}

export function boxAt(sheet: Sheet, x: number, y: number): Box | null {
  return (
    sheet.boxes.findLast(
      (box) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height,
    ) ?? null
  );
}
