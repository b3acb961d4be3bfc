import type { FailureGroup, Failures as Found } from "../api.d.ts";
import { count, many } from "../format.ts";
import { useAsked } from "../hub.ts";
import { param, tune } from "../route.ts";
import { now } from "../session.ts";
import { Card, Empty, Lead, Pick, Shown, Time } from "../ui.tsx";

const SPANS: [string, string][] = [
  ["3600", "the last hour"],
  ["43200", "the last 12 hours"],
  ["86400", "the last day"],
  ["604800", "the last week"],
];
const FAULTS: Record<string, string> = {
  program: "the program",
  limit: "its limit",
  machine: "the machine",
  policy: "dray's policy",
  person: "a person",
};

// What failed, and whose fault is it?
export function Failures() {
  const span = param("span") || "86400";
  // The address names a span; where it names moments, those are meant.
  const from =
    param("from") || new Date(Math.floor(now() / 60_000) * 60_000 - Number(span) * 1000).toISOString();
  const asked = useAsked<Found>("/failures", { from, to: param("to"), by: param("by") }, 30_000);
  return (
    <>
      <h1>Failures</h1>
      <Shown of={asked}>
        {(found) => (
          <>
            <Lead>{found.headline}</Lead>
            <div class="filters">
              <Pick
                label="Of"
                of={SPANS}
                chosen={param("from") ? "" : span}
                onPick={(to) => tune({ span: to === "86400" ? null : to, from: null, to: null }, true)}
              />
              <Pick
                label="Together by"
                of={[
                  ["", "error and job"],
                  ["worker", "worker"],
                  ["user", "user"],
                  ["queue", "queue"],
                ]}
                chosen={param("by")}
                onPick={(to) => tune({ by: to || null }, true)}
              />
            </div>
            {found.groups.length ? (
              found.groups.map((group, n) => <Group key={`${group.error}${n}`} of={group} whole={found} />)
            ) : (
              <Empty>Nothing failed in this time.</Empty>
            )}
            {found.left_out ? (
              <p class="faint">{many(found.left_out, "more group")}: choose a shorter time.</p>
            ) : null}
          </>
        )}
      </Shown>
    </>
  );
}

function Group({ of, whole }: { of: FailureGroup; whole: Found }) {
  const workers = Object.entries(of.workers);
  const example = of.example;
  return (
    <Card
      title={`${count(of.count)} × ${of.verdict.title}`}
      aside={
        <>
          fault of <strong>{FAULTS[of.fault] ?? of.fault}</strong>
        </>
      }
    >
      <Night bins={of.bins} from={whole.from} to={whole.to} />
      {of.error ? <p class="mono">{of.error}</p> : null}
      <p class="faint">
        {of.names.join(", ")} ({many(of.jobs, "job")}), on{" "}
        {workers.map(([worker, n], at) => (
          <span key={worker}>
            {at ? ", " : ""}
            <a href={`/ui/workers/${worker}`}>{worker}</a> {n}
          </span>
        ))}
        {of.more_workers ? ` and ${of.more_workers} more` : ""}; of {Object.keys(of.users).join(", ")}
      </p>
      {example ? (
        <details>
          <summary>
            One of them: {example.name || example.task_id}, <Time at={example.ended_at} />
          </summary>
          <p>
            <a href={`/ui/jobs/${example.job_id}?tab=log`}>Open the job</a>
          </p>
          {example.last?.length ? <pre class="log short">{example.last.join("\n")}</pre> : null}
        </details>
      ) : null}
    </Card>
  );
}

// How many failed in each part of the time.
function Night({ bins, from, to }: { bins: number[]; from: string; to: string }) {
  const most = Math.max(...bins, 1);
  const wide = 640 / Math.max(bins.length, 1);
  const words = `${bins.reduce((a, b) => a + b, 0)} between ${new Date(from).toLocaleString()} and ${new Date(to).toLocaleString()}, most at once ${most}`;
  return (
    <svg class="night" viewBox="0 0 640 36" preserveAspectRatio="none" role="img" aria-label={words}>
      {bins.map((n, at) => (
        <rect
          key={at}
          x={at * wide}
          width={Math.max(wide - 1, 0.5)}
          y={35 - (34 * n) / most}
          height={(34 * n) / most + 1}
        />
      ))}
    </svg>
  );
}
