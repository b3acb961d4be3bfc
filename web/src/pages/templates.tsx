import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { RenderedTemplate, TemplateDocument, TemplateList, TemplateParameter } from "../api.d.ts";
import { ask, Refusal, useAsked } from "../hub.ts";
import { query, tune } from "../route.ts";
import { Empty, Lead, Shown, Table, Time } from "../ui.tsx";
import { Draft } from "./submit.tsx";

export function Templates() {
  const asked = useAsked<TemplateList>("/templates", {}, 60_000);
  return (
    <>
      <h1>Templates</h1>
      <Shown of={asked}>
        {(found) =>
          found.templates.length ? (
            <Table
              caption="Templates"
              rows={found.templates}
              id={(one) => one.name}
              link={(one) => `/templates/${one.name}`}
              columns={[
                { name: "Template", of: (one) => <a href={`/ui/templates/${one.name}`}>{one.name}</a> },
                { name: "Makes a", of: (one) => one.kind },
                { name: "Version", of: (one) => one.version, right: true },
                { name: "By", of: (one) => one.user || "dray" },
                { name: "Since", of: (one) => <Time at={one.at} /> },
                { name: "About", of: (one) => one.about, wide: true },
              ]}
            />
          ) : (
            <Empty command="dray template add FILE">
              There are none. One is a job with typed parameters, which others fill in:
            </Empty>
          )
        }
      </Shown>
    </>
  );
}

// A template as a form: its parameters are fields, what it makes is planned while they are filled in.
export function Template({ name }: { name: string }) {
  const asked = useAsked<TemplateDocument>(`/templates/${name}`, {}, 600_000);
  return (
    <>
      <h1>{name}</h1>
      <Shown of={asked}>{(found) => <Filled of={found} />}</Shown>
    </>
  );
}

function value(one: TemplateParameter, text: string): unknown {
  if (text === "") return undefined;
  if (["int", "integer", "float", "number"].includes(one.type)) {
    const number = Number(text);
    return Number.isFinite(number) ? number : text;
  }
  if (["bool", "boolean"].includes(one.type)) return text === "true";
  return text;
}

function Filled({ of }: { of: TemplateDocument }) {
  const spec = useSignal<Record<string, unknown> | null>(null);
  const faults = useSignal<string[]>([]);
  const given = query.value;
  const params = Object.fromEntries(
    (of.params ?? [])
      .map((one): [string, unknown] => [one.name, value(one, given.get(one.name) ?? "")])
      .filter(([, made]) => made !== undefined),
  );
  const text = JSON.stringify(params);
  useEffect(() => {
    const stop = new AbortController();
    const timer = window.setTimeout(async () => {
      try {
        const body = { params: JSON.parse(text) };
        const made = await ask<RenderedTemplate>("POST", `/templates/${of.name}/render`, {
          body,
          signal: stop.signal,
        });
        spec.value = { template: made.template, params: JSON.parse(text) };
        faults.value = [];
      } catch (error) {
        if (!(error instanceof Refusal)) return;
        spec.value = null;
        const problems = error.body.problems ?? [];
        faults.value = problems.length ? problems.map((one) => `${one.where}: ${one.what}`) : [error.message];
      }
    }, 300);
    return () => {
      window.clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  return (
    <>
      <Lead>{of.about || `Makes a ${of.kind}.`}</Lead>
      <Draft spec={spec.value} faults={faults.value}>
        {(of.params ?? []).map((one) => (
          <label key={one.name}>
            {one.name}
            {one.required ? " (needed)" : ""}
            <input
              name={one.name}
              value={given.get(one.name) ?? ""}
              placeholder={one.default === null || one.default === undefined ? one.type : String(one.default)}
              autocomplete="off"
              onInput={(event) => tune({ [one.name]: event.currentTarget.value || null }, true)}
            />
            <small class="faint">
              {one.help} {one.allowed}
            </small>
          </label>
        ))}
      </Draft>
    </>
  );
}
