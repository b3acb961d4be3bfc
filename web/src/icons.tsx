// Every icon, drawn once on a grid of 16. A state has its own shape, so that colour is never all that tells it.
const SHAPES: Record<string, string> = {
  pending:
    "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 1.6a4.4 4.4 0 1 1 0 8.8 4.4 4.4 0 0 1 0-8.8zM7.3 5h1.4v3l2 1.2-.7 1.2-2.7-1.6z",
  running: "M4.5 2.5v11l9-5.5z",
  succeeded: "M6.4 12.6 2 8.2l1.5-1.5 2.9 2.9 6.1-6.1L14 5z",
  failed: "M4 2.5 8 6.5l4-4L13.5 4l-4 4 4 4-1.5 1.5-4-4-4 4L2.5 12l4-4-4-4z",
  killed: "M3 3h10v10H3z",
  unschedulable: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM4.5 7.2h7v1.6h-7z",
  worker_failed: "M9.5 1 3 9h4l-1 6 7-8.5H8.7z",
  held: "M4 3h3v10H4zm5 0h3v10H9z",
  ready: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z",
  busy: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z",
  offline: "M8 2.5 14 13.5H2zM7.3 6.5v3.3h1.4V6.5zm0 4.3v1.4h1.4v-1.4z",
  draining: "M7.2 2h1.6v7l2.4-2.4 1.2 1.2L8 12.2 3.6 7.8l1.2-1.2L7.2 9zM3 13h10v1.4H3z",
  down: "M3 6h10l-5 6z",
  close: "M4 3 8 7l4-4 1 1-4 4 4 4-1 1-4-4-4 4-1-1 4-4-4-4z",
};

export function Icon({ name, size = 14 }: { name: string; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={SHAPES[name] ?? SHAPES.ready} fill="currentColor" />
    </svg>
  );
}
