import { useSignal } from "@preact/signals";
import type { PolicyAnswer, PolicyChange } from "../api.d.ts";
import { propose } from "../changes.tsx";
import { ask, Refusal, useAsked } from "../hub.ts";
import { param } from "../route.ts";
import { may } from "../session.ts";
import { Card, Empty, Lead, Shown, Table, Tabs } from "../ui.tsx";
import { Capacity, Contrast, Drain, More, Progress, useStudy } from "./studies.tsx";
import { Submit } from "./submit.tsx";

// What would happen? A job that is not submitted, a policy that is not applied.
export function WhatIf() {
  const tab = param("tab") || "policy";
  return (
    <>
      <h1>What if</h1>
      <Tabs
        of={[
          ["policy", "another policy"],
          ["job", "a job"],
          ["drain", "a drain"],
          ["more", "more machines"],
          ["past", "the last weeks with more"],
        ]}
        chosen={tab}
        to={(to) => `/ui/whatif?tab=${to}`}
      />
      {tab === "job" ? (
        <Submit />
      ) : tab === "drain" ? (
        <Drain />
      ) : tab === "more" ? (
        <More />
      ) : tab === "past" ? (
        <Capacity />
      ) : may("admin") ? (
        <Policies />
      ) : (
        <Empty>Policies are changed by admins.</Empty>
      )}
    </>
  );
}

function Policies() {
  const asked = useAsked<PolicyAnswer>("/policy", {}, 600_000);
  return <Shown of={asked}>{(found) => <Editor now={found} />}</Shown>;
}

function Editor({ now }: { now: PolicyAnswer }) {
  const text = useSignal(JSON.stringify(now.policy, null, 2));
  const found = useSignal<PolicyChange | null>(null);
  const fault = useSignal("");
  const study = useStudy();
  const read = async (): Promise<unknown> => (await import("yaml")).parse(text.value, { maxAliasCount: 20 });
  const look = async () => {
    fault.value = "";
    found.value = null;
    try {
      found.value = await ask<PolicyChange>("PUT", "/policy", { query: { dry_run: 1 }, body: await read() });
    } catch (error) {
      fault.value =
        error instanceof Refusal
          ? [error.message, ...(error.body.problems ?? []).map((one) => `${one.where}: ${one.what}`)].join(
              "\n",
            )
          : String(error);
    }
  };
  const change = found.value;
  return (
    <div class="draft">
      <div class="fields">
        <label class="wide">
          The policy (YAML, or JSON as it is)
          <textarea
            rows={20}
            class="mono"
            spellcheck={false}
            value={text.value}
            onInput={(event) => {
              text.value = event.currentTarget.value;
              found.value = null;
            }}
          />
        </label>
      </div>
      <Card title="Today, and then">
        <div class="stack" aria-live="polite">
          {fault.value ? <pre class="fault log short">{fault.value}</pre> : null}
          {change ? (
            <>
              <Lead>
                {change.changed
                  ? `${change.changes?.length ?? 0} values would change.`
                  : "Nothing would change."}
              </Lead>
              {change.changes?.length ? (
                <Table
                  caption="What would change"
                  rows={change.changes}
                  id={(one) => one.name}
                  columns={[
                    { name: "Value", of: (one) => one.name },
                    { name: "Today", of: (one) => <code>{JSON.stringify(one.old)}</code> },
                    { name: "Then", of: (one) => <code>{JSON.stringify(one.new)}</code> },
                  ]}
                />
              ) : null}
              {change.problems?.map((one) => (
                <p key={one.where + one.what} class="care">
                  {one.where}: {one.what}
                </p>
              ))}
            </>
          ) : (
            <p class="faint">Change a value, and ask: nothing is applied by that.</p>
          )}
        </div>
        {study.study.value || study.fault.value ? (
          <Progress of={study}>{(answer) => <Contrast answer={answer} />}</Progress>
        ) : null}
        <div class="buttons">
          <button type="button" class="first" onClick={look}>
            What would change?
          </button>
          {change?.changed ? (
            <button type="button" onClick={async () => study.begin("/whatif", { policy: await read() })}>
              When would what waits start?
            </button>
          ) : null}
          {change?.changed ? (
            <button
              type="button"
              onClick={() =>
                propose({
                  title: "Apply the policy",
                  preview: async () => (
                    <p>
                      {(change.changes ?? []).map((one) => one.name).join(", ")} change for everybody, at
                      once.
                    </p>
                  ),
                  run: async () => {
                    await ask("PUT", "/policy", { body: await read() });
                    return <p>It is in force.</p>;
                  },
                  undo: {
                    name: "Undo: the policy of before",
                    run: async () => {
                      await ask("PUT", "/policy", { body: now.policy });
                      return <p>As it was before.</p>;
                    },
                  },
                })
              }
            >
              Apply …
            </button>
          ) : null}
        </div>
      </Card>
    </div>
  );
}
