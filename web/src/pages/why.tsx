import type { JobDocument, PlanAnswer, WaitsDocument, Why } from "../api.d.ts";
import { propose } from "../changes.tsx";
import { fieldsOf } from "../fix.ts";
import { many, span, within } from "../format.ts";
import { ask, useAsked } from "../hub.ts";
import { may, user } from "../session.ts";
import { Card, Command, Lead, Shown, Table } from "../ui.tsx";

// Why a job is where it is, when it starts, and what would help.
export function WhyPart({ job, waits }: { job: JobDocument; waits: boolean }) {
  const asked = useAsked<Why>(`/jobs/${job.id}/why`, { eta_s: 0 });
  return <Shown of={asked}>{(why) => <Told job={job} why={why} waits={waits} />}</Shown>;
}

function Told({ job, why, waits }: { job: JobDocument; why: Why; waits: boolean }) {
  return (
    <>
      {waits || why.summary ? <Lead>{why.summary}</Lead> : null}
      {waits ? (
        <div class="cards">
          <When why={why} />
          <Help job={job} why={why} />
        </div>
      ) : null}
      {why.blockers?.length ? (
        <Card title="In the way">
          <Table
            caption="What is in the way"
            rows={(why.blockers ?? []).map((one, n) => ({ ...one, n }))}
            id={(one) => String(one.n)}
            columns={[
              { name: "What", of: (one) => one.message, wide: true },
              { name: "Workers", of: (one) => one.workers || "", right: true },
              {
                name: "Until",
                of: (one) => (typeof one.in_s !== "number" ? "" : `in ${span(one.in_s)}`),
                right: true,
              },
              { name: "For good", of: (one) => (one.ever ? "yes" : "") },
            ]}
          />
        </Card>
      ) : null}
      {why.holders?.length ? (
        <Card title="Held by">
          <Table
            caption="Who holds what it asks for"
            rows={(why.holders ?? []).map((one, n) => ({ ...one, n }))}
            id={(one) => String(one.n)}
            columns={[
              {
                name: "Task",
                of: (one) =>
                  one.task_id ? (
                    <a href={`/ui/jobs/${one.task_id.split("/")[0]}`}>{one.task_id}</a>
                  ) : (
                    "somebody else's"
                  ),
                wide: true,
              },
              { name: "User", of: (one) => one.user },
              { name: "What", of: (one) => one.what || one.message },
              { name: "Worker", of: (one) => one.worker },
              {
                name: "Until",
                of: (one) => (typeof one.ends_in_s !== "number" ? "no limit" : `in ${span(one.ends_in_s)}`),
                right: true,
              },
            ]}
          />
        </Card>
      ) : null}
      {why.workers?.length && waits ? (
        <Card title={`Workers that come closest, of ${why.workers_total}`}>
          <Table
            caption="Workers and what keeps it from each"
            rows={(why.workers ?? []).slice(0, 20)}
            id={(one) => one.id}
            columns={[
              { name: "Worker", of: (one) => <a href={`/ui/workers/${one.id}`}>{one.id}</a> },
              {
                name: "Not there, because",
                of: (one) => (one.rejections ?? []).map((why) => why.message).join("; ") || "it fits",
                wide: true,
              },
            ]}
          />
        </Card>
      ) : null}
      {why.waits ? <Waited waits={why.waits} /> : null}
      {why.failures?.length ? (
        <Card title="What failed">
          {(why.failures ?? []).map((one) => (
            <div key={`${one.task_id}${one.title}`}>
              <p>
                {one.title} ({many(one.tasks, "task")}, such as {one.task_id})
              </p>
              {one.evidence?.length ? <pre class="log short">{(one.evidence ?? []).join("\n")}</pre> : null}
            </div>
          ))}
        </Card>
      ) : null}
    </>
  );
}

// What stood in its way first, and for how long: the whole story once it is over.
function Waited({ waits }: { waits: WaitsDocument }) {
  return (
    <Card title="How it waited">
      <p>{waits.message}.</p>
      <ul class="parts" aria-label="Its wait by first reason">
        {(waits.parts ?? []).map((part) => (
          <li key={part.reason}>
            <span>{part.words}</span>
            <meter value={part.seconds} max={waits.seconds} aria-label={part.words} />
            <span class="right">{span(part.seconds)}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function When({ why }: { why: Why }) {
  const estimate = why.estimate;
  return (
    <Card title="When">
      {estimate ? (
        <p class="large">
          {typeof estimate.p50_s !== "number"
            ? estimate.message
            : `starts in ${within(estimate.p50_s, estimate.p90_s)}`}
        </p>
      ) : null}
      {why.start ? <p>{why.start.message}</p> : null}
      {why.place ? <p class="faint">{why.place.message}</p> : null}
      {!estimate && !why.start && !why.place ? <p class="faint">Nobody can tell yet.</p> : null}
      {estimate && typeof estimate.p50_s === "number" ? (
        <Band p50={estimate.p50_s} p90={estimate.p90_s ?? estimate.p50_s} />
      ) : null}
    </Card>
  );
}

// From now to twice its p90: where the start is likely.
function Band({ p50, p90 }: { p50: number; p90: number }) {
  const whole = Math.max(p90 * 1.6, 60);
  return (
    <svg
      class="band"
      viewBox="0 0 320 28"
      role="img"
      aria-label={`likely in ${span(p50)}, nine times of ten in ${span(p90)}`}
    >
      <line x1="0" y1="10" x2="320" y2="10" />
      <rect x={0} y="5" width={(320 * p90) / whole} height="10" />
      <circle cx={Math.max(5, (320 * p50) / whole)} cy="10" r="5" />
      <text x="0" y="27">
        now
      </text>
      <text x="320" y="27" text-anchor="end">
        +{span(whole)}
      </text>
    </svg>
  );
}

function Help({ job, why }: { job: JobDocument; why: Why }) {
  const change = why.change;
  const fields = change?.assign ? fieldsOf(change.assign) : null;
  const allowed = may("submit") && (job.user === user() || may("admin"));
  const set = () => {
    if (!fields) return;
    const before = Object.fromEntries(Object.keys(fields).map((key) => [key, job.spec?.[key] ?? null]));
    propose({
      title: "Change it",
      preview: async () => {
        const spec: Record<string, unknown> = { ...job.spec, ...fields };
        for (const key of ["id", "user_id", "rendered", "params", "template"]) delete spec[key];
        const plan = await ask<PlanAnswer>("POST", "/plan", { body: spec });
        return (
          <>
            <p>{change?.message}</p>
            <p>{plan.summary}</p>
            {plan.victims?.length ? (
              <p>
                Stops {many(plan.victims?.length, "task")}; {span(plan.lost_s)} of work is lost.
              </p>
            ) : null}
          </>
        );
      },
      run: async () => {
        await ask("PATCH", `/jobs/${job.id}`, { body: fields });
        return <p>Changed: {change?.assign}.</p>;
      },
      undo: {
        name: "Undo: as it was",
        run: async () => {
          await ask("PATCH", `/jobs/${job.id}`, { body: before });
          return <p>As it was before.</p>;
        },
      },
    });
  };
  return (
    <Card title="What would help">
      {change ? (
        <p class="large">{change.message}</p>
      ) : why.fix ? (
        <p>{why.fix}</p>
      ) : (
        <p class="faint">Only waiting: no single change would start it now.</p>
      )}
      {change && fields && allowed ? (
        <button type="button" class="first" onClick={set}>
          Preview {change.assign}
        </button>
      ) : null}
      {change?.assign && !fields ? <Command text={`dray set ${job.id} ${change.assign}`} /> : null}
    </Card>
  );
}
