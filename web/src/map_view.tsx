// The map: one canvas, painted where something changed; pointer and keys move over the same workers as the table has.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { heldShare, type WorkerRow } from "./cluster_rows.ts";
import { count, many } from "./format.ts";
import { type Layout, lay, under } from "./map.ts";
import { type Colouring, paintCursor, paintLabels, paintOne, palette } from "./paint.ts";
import { go } from "./route.ts";
import { theme } from "./theme.ts";
import { State } from "./ui.tsx";

type Props = { rows: Map<string, WorkerRow>; dirty: string[] | null; by: Colouring; grouped: boolean };

export function WorkerMap({ rows, dirty, by, grouped }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const at = useSignal(-1);
  const listed = useMemo(() => [...rows.values()].sort((a, b) => (a.id < b.id ? -1 : 1)), [rows]);
  const places = useMemo(() => new Map(listed.map((row, n) => [row.id, n])), [listed]);
  const layout = useMemo(() => arrange(listed, grouped, width.value), [listed, grouped, width.value]);
  const drawn = useMemo(() => new Map(layout.order.map((place, n) => [place, n])), [layout]);

  useEffect(() => {
    const box = canvas.current?.parentElement;
    if (!box) return;
    const watch = new ResizeObserver(() => {
      width.value = box.clientWidth;
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, []);

  const all = () => {
    const draw = prepare(canvas.current, layout);
    if (!draw || !canvas.current) return;
    const colours = palette(canvas.current.parentElement as Element);
    paintLabels(
      draw,
      layout,
      layout.groups.map((group) => sum(group.first, group.count, layout, listed)),
      colours,
    );
    layout.order.forEach((place, n) => {
      paintOne(draw, layout, n, listed[place] as WorkerRow, by, colours);
    });
    if (at.peek() >= 0) paintCursor(draw, layout, at.peek(), colours);
  };
  useEffect(all, [layout, by, theme.value]);
  useEffect(() => {
    const media = window.matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", all);
    return () => media.removeEventListener("change", all);
  });
  useEffect(() => {
    const draw = canvas.current?.getContext("2d");
    if (!dirty || !draw || !canvas.current) return;
    const colours = palette(canvas.current.parentElement as Element);
    for (const id of dirty) {
      const place = places.get(id);
      const row = rows.get(id);
      if (place === undefined || !row) continue;
      listed[place] = row;
      paintOne(draw, layout, drawn.get(place) ?? 0, row, by, colours);
    }
  }, [dirty]);

  const move = (next: number) => {
    const draw = canvas.current?.getContext("2d");
    const colours = draw && canvas.current ? palette(canvas.current.parentElement as Element) : null;
    if (draw && colours) {
      const before = at.value;
      const row = before >= 0 ? listed[layout.order[before] ?? -1] : undefined;
      if (row) paintOne(draw, layout, before, row, by, colours);
      if (next >= 0) paintCursor(draw, layout, next, colours);
    }
    at.value = next;
  };
  const keys = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: layout.across, ArrowUp: -layout.across }[
      event.key
    ];
    if (step !== undefined) {
      event.preventDefault();
      move(Math.max(0, Math.min(layout.order.length - 1, at.value < 0 ? 0 : at.value + step)));
    } else if (event.key === "Enter" && at.value >= 0) go(`/workers/${idAt(listed, layout, at.value)}`);
  };
  const point = (event: PointerEvent) => {
    const found = under(layout, event.offsetX, event.offsetY);
    if (found !== at.value && found >= 0) move(found);
  };
  const row = at.value >= 0 ? listed[layout.order[at.value] ?? -1] : undefined;
  return (
    <figure class="map">
      <div
        class="canvas"
        role="application"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys move over it
        tabIndex={0}
        aria-label={`Map of ${many(rows.size, "worker")}. Arrow keys move, Enter opens. The table below has the same.`}
        onKeyDown={keys}
      >
        <canvas
          ref={canvas}
          onPointerMove={point}
          onClick={(event) => {
            const found = under(layout, event.offsetX, event.offsetY);
            if (found >= 0) go(`/workers/${idAt(listed, layout, found)}`);
          }}
        />
      </div>
      <figcaption aria-live="polite">{row ? <Told row={row} /> : <Legend />}</figcaption>
    </figure>
  );
}

function idAt(listed: WorkerRow[], layout: Layout, at: number): string {
  return listed[layout.order[at] ?? -1]?.id ?? "";
}

function arrange(listed: WorkerRow[], grouped: boolean, width: number): Layout {
  const names = new Map<string, number>();
  const places = listed.map((row) => {
    const name = grouped ? row.group : row.kind;
    const known = names.get(name);
    if (known !== undefined) return known;
    names.set(name, names.size);
    return names.size - 1;
  });
  return lay(places, [...names.keys()], Math.max(width, 64));
}

function prepare(canvas: HTMLCanvasElement | null, layout: Layout): CanvasRenderingContext2D | null {
  if (!canvas) return null;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(layout.width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const draw = canvas.getContext("2d");
  draw?.scale(ratio, ratio);
  return draw;
}

function sum(first: number, size: number, layout: Layout, listed: WorkerRow[]): string {
  let gpus = 0;
  let held = 0;
  for (let at = first; at < first + size; at += 1) {
    const row = listed[layout.order[at] ?? -1];
    gpus += row?.gpus ?? 0;
    held += row?.held ?? 0;
  }
  return gpus ? `${count(held / 1000)}/${count(gpus)} GPUs held` : many(size, "worker");
}

function Told({ row }: { row: WorkerRow }) {
  const share = Math.round(100 * heldShare(row));
  return (
    <>
      <strong>{row.id}</strong> <State of={row.state} /> {row.kind}, {share} % held
      {row.used >= 0 ? `, ${Math.round(row.used / 10)} % really used` : ""}
      {row.idle ? `, ${row.idle} idle for 10 min` : ""}, {many(row.tasks, "task")}
      {row.user ? `, most by ${row.user}` : ""}
    </>
  );
}

function Legend() {
  return (
    <span class="legend">
      <span>
        <i class="key key-held" /> held, from below
      </span>
      <span>
        <i class="key" /> free
      </span>
      <span>
        <i class="key key-hatch" /> takes no work
      </span>
      <span>
        <i class="key key-idle" /> held and idle
      </span>
      <span>
        <i class="key key-gone">✕</i> away
      </span>
    </span>
  );
}
