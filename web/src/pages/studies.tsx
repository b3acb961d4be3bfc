import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type {
  CapacityOption,
  OutlookDocument,
  ReplayFigures,
  StudyAnswer,
  StudyDocument,
  WorkerList,
} from "../api.d.ts";
import { count, percent, span } from "../format.ts";
import { ask, Refusal, useAsked } from "../hub.ts";
import { Card, Empty, Fault, Lead, Shown, Table } from "../ui.tsx";

// A question that the hub works out beside itself: begun, followed, called off.
export function useStudy() {
  const study = useSignal<StudyDocument | null>(null);
  const fault = useSignal<Refusal | null>(null);
  const alive = useSignal(true);
  const stop = async () => {
    const id = study.value?.id;
    if (id) study.value = await ask<StudyDocument>("DELETE", `/studies/${id}`);
  };
  useEffect(
    () => () => {
      alive.value = false;
      if (study.value && isOpen(study.value)) void stop().catch(() => undefined);
    },
    [],
  );
  const begin = async (path: string, body: unknown) => {
    fault.value = null;
    study.value = null;
    try {
      study.value = await ask<StudyDocument>("POST", path, { body });
      while (alive.value && study.value && isOpen(study.value)) {
        study.value = await ask<StudyDocument>("GET", `/studies/${study.value.id}`, { query: { wait_s: 1 } });
      }
    } catch (error) {
      fault.value =
        error instanceof Refusal ? error : new Refusal(0, { code: "error", message: String(error) });
    }
  };
  return { study, fault, begin, stop };
}

function isOpen(study: StudyDocument): boolean {
  return study.state === "waiting" || study.state === "running";
}

type Study = ReturnType<typeof useStudy>;

// How far it is, what went wrong, or what was found.
export function Progress({
  of,
  children,
}: {
  of: Study;
  children: (answer: StudyAnswer) => ComponentChildren;
}) {
  const study = of.study.value;
  if (of.fault.value) return <Fault of={of.fault.value} />;
  if (!study) return <p class="faint">Nothing is changed by asking.</p>;
  if (isOpen(study)) {
    return (
      <p>
        <progress value={study.progress} max={1} aria-label="how far it is" />{" "}
        {study.state === "waiting" ? "others are first" : study.doing || "reading"}{" "}
        <button type="button" onClick={of.stop}>
          Call off
        </button>
      </p>
    );
  }
  if (study.state === "cancelled") return <p class="faint">Called off.</p>;
  if (!study.answer) return <p class="fault">{study.error}</p>;
  return <>{children(study.answer)}</>;
}

function Workers({ name, chosen, to }: { name: string; chosen: string; to: (id: string) => void }) {
  const listed = useAsked<WorkerList>("/workers", { limit: 1000, sort: "name" }, 600_000);
  return (
    <Shown of={listed}>
      {(found) => (
        <label>
          {name}
          <input list="workers" value={chosen} onInput={(event) => to(event.currentTarget.value)} />
          <datalist id="workers">
            {found.workers.map((one) => (
              <option key={one.id} value={one.id} />
            ))}
          </datalist>
        </label>
      )}
    </Shown>
  );
}

function Count({ of, to }: { of: number; to: (value: number) => void }) {
  return (
    <label>
      How many
      <input
        type="number"
        min={1}
        max={64}
        value={of}
        onInput={(event) => to(Math.max(1, Math.min(64, event.currentTarget.valueAsNumber || 1)))}
      />
    </label>
  );
}

// A worker that gets nothing new.
export function Drain() {
  const worker = useSignal("");
  const study = useStudy();
  return (
    <Asking
      study={study}
      ready={worker.value !== ""}
      ask={() => study.begin("/whatif", { drain: [worker.value.trim()] })}
      form={<Workers name="Drain" chosen={worker.value} to={(id) => (worker.value = id)} />}
    >
      {(answer) => <Contrast answer={answer} />}
    </Asking>
  );
}

// More workers like one that is there.
export function More() {
  const like = useSignal("");
  const number = useSignal(1);
  const study = useStudy();
  return (
    <Asking
      study={study}
      ready={like.value !== ""}
      ask={() => study.begin("/whatif", { more: [{ like: like.value.trim(), count: number.value }] })}
      form={
        <>
          <Workers name="More like" chosen={like.value} to={(id) => (like.value = id)} />
          <Count of={number.value} to={(value) => (number.value = value)} />
        </>
      }
    >
      {(answer) => <Contrast answer={answer} />}
    </Asking>
  );
}

// What one more worker of each kind would have brought.
export function Capacity() {
  const since = useSignal("14d");
  const study = useStudy();
  return (
    <Asking
      study={study}
      ready={since.value !== ""}
      ask={() => study.begin("/capacity", { since: since.value.trim() })}
      form={
        <label>
          Replay the last
          <input value={since.value} onInput={(event) => (since.value = event.currentTarget.value)} />
        </label>
      }
    >
      {(answer) => <Brought answer={answer} />}
    </Asking>
  );
}

function Asking({
  study,
  ready,
  ask: begin,
  form,
  children,
}: {
  study: Study;
  ready: boolean;
  ask: () => void;
  form: ComponentChildren;
  children: (answer: StudyAnswer) => ComponentChildren;
}) {
  const open = study.study.value !== null && isOpen(study.study.value);
  return (
    <div class="stack">
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready && !open) begin();
        }}
      >
        {form}
        <button type="submit" class="first" disabled={!ready || open}>
          What then?
        </button>
      </form>
      <section class="stack" aria-live="polite">
        <Progress of={study}>{children}</Progress>
      </section>
    </div>
  );
}

function start(one: { p50_s: number } | null | undefined): string {
  return one ? `in ${span(one.p50_s)}` : "nobody knows";
}

function middle(seconds: number | null | undefined): string {
  return typeof seconds === "number" ? span(seconds) : "–";
}

// Today on the left, then on the right.
export function Contrast({ answer }: { answer: StudyAnswer }) {
  const sides: [string, OutlookDocument][] = [];
  if (answer.today) sides.push(["Today", answer.today]);
  if (answer.then) sides.push(["Then", answer.then]);
  return (
    <>
      <Lead>{answer.headline}</Lead>
      <div class="cards">
        {sides.map(([name, side]) => (
          <Card key={name} title={name}>
            <p class="large">{middle(side.wait_p50_s)} until half of what waits has started</p>
            <p>
              p90 {middle(side.wait_p90_s)}; of {count(side.unknown)} of {count(side.tasks)} nobody can say
              when
            </p>
            {side.gpus ? <Held side={side} horizon={answer.horizon_s ?? 0} /> : null}
          </Card>
        ))}
      </div>
      {answer.users?.length ? (
        <Table
          caption="The middle wait of each user's tasks"
          rows={answer.users}
          id={(one) => one.user}
          columns={[
            { name: "User", of: (one) => one.user },
            { name: "Tasks", of: (one) => count(one.tasks), right: true },
            { name: "Today", of: (one) => middle(one.today_p50_s), right: true },
            { name: "Then", of: (one) => middle(one.then_p50_s), right: true },
          ]}
        />
      ) : null}
      {answer.jobs?.length ? (
        <Table
          caption="Jobs that wait, those first for which most changes"
          rows={answer.jobs}
          id={(one) => one.id}
          columns={[
            { name: "Job", of: (one) => <a href={`/ui/jobs/${one.id}`}>{one.name || one.id}</a>, wide: true },
            { name: "User", of: (one) => one.user },
            { name: "Today", of: (one) => start(one.today), right: true },
            { name: "Then", of: (one) => start(one.then), right: true },
          ]}
        />
      ) : (
        <Empty>No job of yours waits.</Empty>
      )}
    </>
  );
}

// Shares of the cards that are held, from now to the horizon; the sentence below says the same.
function Held({ side, horizon }: { side: OutlookDocument; horizon: number }) {
  const bins = side.held ?? [];
  const wide = 320 / Math.max(1, bins.length);
  const told = `${percent(side.held_share, 1)} of ${count(side.gpus)} GPUs held over the next ${span(horizon)}`;
  return (
    <>
      <svg class="band" viewBox="0 0 320 40" role="img" aria-label={told}>
        {bins.map((share, n) => (
          <rect key={n} x={n * wide} y={40 - 40 * share} width={Math.max(1, wide - 1)} height={40 * share} />
        ))}
      </svg>
      <p class="faint">{told}</p>
    </>
  );
}

function Brought({ answer }: { answer: StudyAnswer }) {
  const base = answer.replays?.[0];
  type Row = { name: string; like: string; figures: ReplayFigures };
  const rows: Row[] = base ? [{ name: "as it was", like: "", figures: base }] : [];
  for (const one of answer.options ?? [])
    if (one.figures) rows.push({ name: named(one), like: one.like, figures: one.figures });
  return (
    <>
      <Lead>{answer.headline}</Lead>
      <Table
        caption="What further workers would have brought"
        rows={rows}
        id={(one) => one.name + one.like}
        columns={[
          { name: "Workers", of: (one) => one.name, wide: true },
          { name: "Like", of: (one) => one.like },
          { name: "Half waited less than", of: (one) => span(one.figures.wait_p50_s), right: true },
          { name: "p90", of: (one) => span(one.figures.wait_p90_s), right: true },
          { name: "GPUs held", of: (one) => percent(one.figures.gpu_utilisation, 1), right: true },
        ]}
      />
      <Card title="It assumes">
        <ul>
          {(answer.assumes ?? []).map((one) => (
            <li key={one}>{one}</li>
          ))}
        </ul>
      </Card>
      {answer.earlier?.length ? (
        <Card title="Advised before">
          <ul>
            {answer.earlier.map((one) => (
              <li key={one.message}>{one.message}</li>
            ))}
          </ul>
        </Card>
      ) : null}
    </>
  );
}

function named(one: CapacityOption): string {
  return `+${one.count} ${one.kind}`;
}
