import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useAsked } from "../hub.ts";
import { type Bar, boxAt, place, type Sheet, type TimelineRow, ticks } from "../lanes.ts";
import { look } from "../live.ts";
import { hue, type Palette, palette } from "../paint.ts";
import { go, param, tune } from "../route.ts";
import { now } from "../session.ts";
import { theme } from "../theme.ts";
import { Empty, Lead, Pick, Shown, Table } from "../ui.tsx";

type Found = {
  from: string;
  to: string;
  now_ms: number;
  headline: string;
  rows: TimelineRow[];
  cut?: boolean;
  next_cursor?: string | null;
};
const HOUR = 3_600_000;
const SPANS: [string, string][] = [
  ["1", "1 hour"],
  ["6", "6 hours"],
  ["24", "a day"],
  ["72", "3 days"],
];
const AXIS = 22;
const SAYS: Record<string, string> = {
  runs: "runs, to its likely end",
  kept: "kept for it",
  foreseen: "foreseen",
};

// Who had, has and gets which card when: the future on the same axis as the past.
export function Timeline() {
  const hours = Number(param("hours")) || 6;
  const at = Number(param("at")) || 0;
  const middle = Math.floor(now() / 30_000) * 30_000 + at * HOUR;
  useEffect(() => look(["jobs"]), []);
  const asked = useAsked<Found>(
    "/timeline",
    {
      from: new Date(middle - hours * HOUR).toISOString(),
      to: new Date(middle + hours * HOUR).toISOString(),
      kind: param("kind"),
      job: param("job"),
      cursor: param("cursor"),
    },
    10_000,
  );
  const move = (by: number) => tune({ at: at + by ? String(at + by) : null }, true);
  return (
    <>
      <h1>Timeline</h1>
      <Shown of={asked}>
        {(found) => (
          <>
            <Lead>{found.headline}</Lead>
            <div class="filters">
              <Pick
                label="Each way"
                of={SPANS}
                chosen={String(hours)}
                onPick={(to) => tune({ hours: to === "6" ? null : to }, true)}
              />
              <button type="button" onClick={() => move(-hours)}>
                Earlier
              </button>
              <button type="button" disabled={!at} onClick={() => tune({ at: null }, true)}>
                Now
              </button>
              <button type="button" onClick={() => move(hours)}>
                Later
              </button>
              <label>
                Kind{" "}
                <input
                  type="search"
                  size={10}
                  data-find=""
                  value={param("kind")}
                  onChange={(event) => tune({ kind: event.currentTarget.value || null, cursor: null }, true)}
                />
              </label>
            </div>
            {found.rows.length ? (
              <Bars of={found} />
            ) : (
              <Empty>No worker is like that, or none has joined yet.</Empty>
            )}
            {found.next_cursor ? (
              <button type="button" onClick={() => tune({ cursor: found.next_cursor ?? null })}>
                More workers
              </button>
            ) : null}
          </>
        )}
      </Shown>
    </>
  );
}

function Bars({ of }: { of: Found }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const told = useSignal("");
  const from = Date.parse(of.from);
  const to = Date.parse(of.to);
  const sheet = useMemo(
    () => place(of.rows, from, to, Math.max(width.value, 64), of.now_ms),
    [of, width.value],
  );
  useEffect(() => {
    const box = canvas.current?.parentElement;
    if (!box) return;
    const watch = new ResizeObserver(() => {
      width.value = box.clientWidth;
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (canvas.current && width.value) paint(canvas.current, sheet, of, from, to, width.value);
  }, [sheet, theme.value]);
  const point = (event: PointerEvent) => {
    const box = boxAt(sheet, event.offsetX, event.offsetY - AXIS);
    told.value = box ? `${box.worker}: ${say(box.bar)}` : "";
  };
  return (
    <>
      <figure class="map">
        <div class="canvas">
          <canvas
            ref={canvas}
            role="img"
            aria-label="Who has which card when; the table below has the same"
            onPointerMove={point}
            onClick={(event) => {
              const box = boxAt(sheet, event.offsetX, event.offsetY - AXIS);
              if (box?.bar[5]) go(`/jobs/${box.bar[5]}`);
            }}
          />
        </div>
        <figcaption aria-live="polite">
          {told.value || (
            <span class="legend">
              <span>
                <i class="key key-held" /> ran
              </span>
              <span>
                <i class="key key-runs" /> runs, to its likely end
              </span>
              <span>
                <i class="key key-foreseen" /> foreseen, or kept
              </span>
              <span>
                <i class="key key-gone">✕</i> failed, lost or stopped
              </span>
              a colour for each user
            </span>
          )}
        </figcaption>
      </figure>
      <details>
        <summary>The same as a table</summary>
        <Table
          caption="Bars of the timeline"
          rows={of.rows.flatMap((row) => row.bars.map((bar) => ({ worker: row.worker, bar }))).slice(0, 500)}
          id={({ worker, bar }) => `${worker} ${bar.join(" ")}`}
          columns={[
            { name: "Worker", of: (one) => <a href={`/ui/workers/${one.worker}`}>{one.worker}</a> },
            { name: "Card", of: (one) => (one.bar[0] < 0 ? "" : one.bar[0]), right: true },
            { name: "State", of: (one) => SAYS[one.bar[3]] ?? one.bar[3] },
            { name: "User", of: (one) => one.bar[4] },
            {
              name: "Job",
              of: (one) =>
                one.bar[5] ? <a href={`/ui/jobs/${one.bar[5]}`}>{one.bar[7] || one.bar[5]}</a> : "",
              wide: true,
            },
            { name: "From", of: (one) => clock(one.bar[1]) },
            { name: "To", of: (one) => (one.bar[2] ? clock(one.bar[2]) : "no limit") },
          ]}
        />
      </details>
    </>
  );
}

function clock(ms: number): string {
  return new Date(ms).toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" });
}

function say(bar: Bar): string {
  const name = bar[7] || bar[5] || "somebody's work";
  const card = bar[0] < 0 ? "" : `, card ${bar[0]}`;
  return `${name}${bar[4] ? ` of ${bar[4]}` : ""}${card}, ${SAYS[bar[3]] ?? bar[3]}, ${clock(bar[1])} to ${bar[2] ? clock(bar[2]) : "no limit"}`;
}

const BAD = ["failed", "lost", "killed", "preempted"];

function paint(
  canvas: HTMLCanvasElement,
  sheet: Sheet,
  of: Found,
  from: number,
  to: number,
  width: number,
): void {
  const ratio = window.devicePixelRatio || 1;
  const height = sheet.height + AXIS;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const draw = canvas.getContext("2d");
  if (!draw) return;
  draw.scale(ratio, ratio);
  const colours = palette(canvas.parentElement as Element);
  draw.font = "12px system-ui, 'Open Sans', sans-serif";
  draw.textBaseline = "top";
  for (const at of ticks(from, to, width)) {
    const x = ((at - from) / (to - from)) * width;
    draw.fillStyle = colours.line;
    draw.fillRect(x, AXIS, 1, sheet.height);
    draw.fillStyle = colours.faint;
    draw.fillText(
      new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" }),
      x + 3,
      2,
    );
  }
  for (const label of sheet.labels) {
    draw.fillStyle = colours.text;
    draw.fillText(`${label.worker}  ${label.kind}`, 0, AXIS + label.y + 2);
  }
  for (const box of sheet.boxes)
    paintBar(draw, box.bar, box.x, box.y + AXIS, box.width, box.height, colours, width);
  const x = ((of.now_ms - from) / (to - from)) * width;
  const word = draw.measureText("now").width;
  draw.fillStyle = colours.ground;
  draw.fillRect(x - word / 2 - 4, 0, word + 8, AXIS - 4);
  draw.fillStyle = colours.text;
  draw.fillText("now", x - word / 2, 2);
  draw.fillRect(x - 1, AXIS - 5, 2, height - AXIS + 5);
}

function paintBar(
  draw: CanvasRenderingContext2D,
  bar: Bar,
  x: number,
  y: number,
  wide: number,
  high: number,
  colours: Palette,
  width: number,
): void {
  const state = bar[3];
  const colour = bar[4] ? `hsl(${hue(bar[4])} 55% 52%)` : colours.faint;
  draw.strokeStyle = colour;
  draw.fillStyle = colour;
  draw.lineWidth = 1;
  if (state === "foreseen" || state === "kept") {
    draw.setLineDash(state === "kept" ? [2, 2] : [5, 3]);
    draw.strokeRect(x + 0.5, y + 0.5, Math.max(1, wide - 1), high - 1);
    draw.setLineDash([]);
  } else {
    if (state === "runs") draw.globalAlpha = 0.55;
    draw.fillRect(x, y, wide, high);
    draw.globalAlpha = 1;
    if (state === "runs") draw.strokeRect(x + 0.5, y + 0.5, Math.max(1, wide - 1), high - 1);
  }
  if (BAD.includes(state)) {
    draw.fillStyle = colours.bad;
    draw.fillRect(Math.min(x + wide - 3, width - 3), y, 3, high);
  }
  const name = bar[7] || bar[5];
  if (wide > 60 && name) {
    draw.save();
    draw.beginPath();
    draw.rect(x, y, wide - 4, high);
    draw.clip();
    draw.fillStyle = state === "foreseen" || state === "kept" ? colours.text : "#000";
    draw.fillText(name, x + 4, y);
    draw.restore();
  }
}
