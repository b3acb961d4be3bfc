import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { JobDocument } from "../api.d.ts";
import { Refusal, raw } from "../hub.ts";
import { plain, Tail } from "../log.ts";
import { param, tune } from "../route.ts";
import { Pick } from "../ui.tsx";

const LINES = 2000;

// The end of the output, as it grows; text and nothing else.
export function Log({ job }: { job: JobDocument }) {
  const task = param("task");
  const stream = param("stream") || "both";
  const box = useRef<HTMLPreElement>(null);
  const said = useSignal("");
  const cut = useSignal(false);
  const ended = Boolean(job.ended_at);
  useEffect(() => {
    const stop = new AbortController();
    void follow(job.id, task, stream, stop.signal, box, (words, dropped) => {
      said.value = words;
      cut.value = dropped;
    });
    return () => stop.abort();
  }, [job.id, task, stream, job.attempt_count]);
  return (
    <section>
      <div class="filters">
        {job.tasks && job.tasks.total > 1 ? (
          <label>
            Task{" "}
            <input
              type="number"
              min={0}
              max={job.tasks.total - 1}
              value={task || "0"}
              onChange={(event) => tune({ task: event.currentTarget.value }, true)}
            />
          </label>
        ) : null}
        <Pick
          label="Output"
          of={[
            ["both", "both"],
            ["stdout", "stdout"],
            ["stderr", "stderr"],
          ]}
          chosen={stream}
          onPick={(to) => tune({ stream: to === "both" ? null : to }, true)}
        />
        <span class="faint" role="status">
          {said.value || (ended ? "all of it" : "follows")}
          {cut.value ? `; only the end is shown, all of it: dray logs ${job.id}` : ""}
        </span>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <pre ref={box} class="log" tabIndex={0} role="log" aria-label="Output" />
    </section>
  );
}

async function follow(
  id: string,
  task: string,
  stream: string,
  signal: AbortSignal,
  box: { current: HTMLPreElement | null },
  tell: (words: string, dropped: boolean) => void,
): Promise<void> {
  while (!signal.aborted) {
    const tail = new Tail();
    try {
      const query = { task, stream, tail: LINES, follow: 1 };
      const answer = await raw("GET", `/jobs/${id}/logs`, { query, signal });
      const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = (await reader?.read()) ?? { value: "", done: true };
        if (done) break;
        tail.add(value ?? "");
        show(box.current, tail.text);
        tell("", tail.dropped);
      }
      show(box.current, tail.text);
      tell(tail.text ? "" : "nothing was printed", tail.dropped);
      return;
    } catch (fault) {
      if (signal.aborted) return;
      if (fault instanceof Refusal && fault.status && fault.status !== 503) {
        tell(fault.message, false);
        return;
      }
      tell("the connection broke; asking again", tail.dropped);
      await new Promise((done) => window.setTimeout(done, 1000));
    }
  }
}

function show(box: HTMLPreElement | null, text: string): void {
  if (!box) return;
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  box.textContent = plain(text);
  if (atEnd) box.scrollTop = box.scrollHeight;
}
