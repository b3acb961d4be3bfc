import { useSignal } from "@preact/signals";
import type { AuditList, Doctor, HubList, PolicyAnswer, TokenDocument, TokenList } from "../api.d.ts";
import { propose } from "../changes.tsx";
import { many } from "../format.ts";
import { ask, useAsked } from "../hub.ts";
import { param } from "../route.ts";
import { may, who } from "../session.ts";
import { Card, Empty, Facts, Lead, Shown, State, Table, Tabs, Time } from "../ui.tsx";

const TABS: [string, string][] = [
  ["doctor", "doctor"],
  ["hubs", "hubs"],
  ["policy", "policy"],
  ["tokens", "tokens"],
  ["audit", "audit"],
];

// Is dray itself well?
export function Site() {
  if (!may("admin")) return <Empty>This page is for admins: your token has not that scope.</Empty>;
  const tab = param("tab") || "doctor";
  return (
    <>
      <h1>Hub</h1>
      <Tabs of={TABS} chosen={tab} to={(to) => `/ui/hub?tab=${to}`} />
      {tab === "doctor" ? <Checks /> : null}
      {tab === "hubs" ? <Hubs /> : null}
      {tab === "policy" ? <Policy /> : null}
      {tab === "tokens" ? <Tokens /> : null}
      {tab === "audit" ? <Audit /> : null}
    </>
  );
}

function Checks() {
  const asked = useAsked<Doctor>("/doctor", {}, 10_000);
  return (
    <Shown of={asked}>
      {(found) => {
        const bad = found.checks.filter((one) => !one.ok);
        const facts = Object.entries(found.facts ?? {}).filter(([, value]) => typeof value !== "object");
        return (
          <>
            <Lead>
              {found.ok
                ? `All ${many(found.checks.length, "check")} are well.`
                : `${many(bad.length, "check")} found something.`}
            </Lead>
            <Table
              caption="Checks"
              rows={[...bad, ...found.checks.filter((one) => one.ok)]}
              id={(one) => one.name}
              columns={[
                { name: "How", of: (one) => <State of={one.ok ? "succeeded" : "failed"} /> },
                { name: "Check", of: (one) => one.name },
                { name: "What it saw", of: (one) => one.detail, wide: true },
              ]}
            />
            <Card title="Numbers">
              <Facts
                rows={facts.map(([name, value]): [string, string] => [
                  name.replaceAll("_", " "),
                  String(value),
                ])}
              />
            </Card>
            {found.reports?.length ? (
              <Card title="Reports of faults">
                <Table
                  caption="Reports"
                  rows={found.reports}
                  id={(one) => one.id}
                  columns={[
                    { name: "When", of: (one) => <Time at={one.last_at} /> },
                    { name: "Times", of: (one) => one.count, right: true },
                    { name: "What", of: (one) => `${one.what} ${one.error}`, wide: true },
                  ]}
                />
              </Card>
            ) : null}
          </>
        );
      }}
    </Shown>
  );
}

function Hubs() {
  const asked = useAsked<HubList>("/hubs", {}, 5000);
  return (
    <Shown of={asked}>
      {(found) => (
        <Table
          caption="Hubs"
          rows={found.hubs}
          id={(one) => one.id}
          columns={[
            { name: "Hub", of: (one) => one.url, wide: true },
            { name: "Part", of: (one) => one.role },
            { name: "Version", of: (one) => one.version },
            { name: "Workers", of: (one) => one.workers, right: true },
            { name: "Behind by", of: (one) => (one.lag ? many(one.lag, "turn") : ""), right: true },
          ]}
        />
      )}
    </Shown>
  );
}

function Policy() {
  const asked = useAsked<PolicyAnswer>("/policy", {}, 30_000);
  return (
    <Shown of={asked}>
      {(found) => (
        <>
          <Lead>
            From {found.origin || "nobody: it is the default"}
            {found.user ? `, by ${found.user}` : ""}.
          </Lead>
          <Table
            caption="Values of the policy and where each came from"
            rows={found.values}
            id={(one) => one.name}
            columns={[
              { name: "Value", of: (one) => one.name },
              { name: "Is", of: (one) => <code>{JSON.stringify(one.value)}</code>, wide: true },
              { name: "From", of: (one) => one.origin },
            ]}
          />
        </>
      )}
    </Shown>
  );
}

function Tokens() {
  const asked = useAsked<TokenList>("/tokens", {}, 10_000);
  const all = useSignal(false);
  const own = typeof who.value === "object" ? who.value.token : "";
  return (
    <Shown of={asked}>
      {(found) => {
        const live = found.tokens.filter((one) => !one.revoked);
        return (
          <>
            <Lead>
              {many(live.length, "token")} {live.length === 1 ? "is" : "are"} good.
            </Lead>
            <label>
              <input
                type="checkbox"
                checked={all.value}
                onChange={(event) => {
                  all.value = event.currentTarget.checked;
                }}
              />{" "}
              also revoked ones
            </label>
            <Table
              caption="Tokens"
              rows={all.value ? found.tokens : live}
              id={(one) => one.id}
              columns={[
                { name: "Token", of: (one) => `${one.id}${one.id === own ? " (this session)" : ""}` },
                { name: "User", of: (one) => one.user },
                { name: "May", of: (one) => one.scopes.join(", ") },
                {
                  name: "For",
                  of: (one) => (one.parent ? `a browser, by ${one.parent}` : (one.worker ?? "")),
                },
                { name: "Last used", of: (one) => <Time at={one.last_used_at} /> },
                { name: "Ends", of: (one) => <Time at={one.expires_at} /> },
                { name: "Change", of: (one) => (one.revoked ? "revoked" : <Revoke token={one} />) },
              ]}
            />
          </>
        );
      }}
    </Shown>
  );
}

function Revoke({ token }: { token: TokenDocument }) {
  return (
    <button
      type="button"
      class="grave"
      aria-label={`Revoke ${token.id}`}
      onClick={() =>
        propose({
          title: "Revoke",
          grave: true,
          preview: async () => {
            const { tokens } = await ask<TokenList>("GET", "/tokens");
            const children = tokens.filter((one) => one.parent === token.id).length;
            return (
              <p>
                Token {token.id} of {token.user} ({token.scopes.join(", ")}) opens nothing any more
                {children ? `, and ${many(children, "session")} of a browser ends with it` : ""}. There is no
                way back.
              </p>
            );
          },
          run: async () => {
            await ask("DELETE", `/tokens/${token.id}`);
            return <p>Token {token.id} is revoked.</p>;
          },
        })
      }
    >
      Revoke
    </button>
  );
}

function Audit() {
  const asked = useAsked<AuditList>("/audit", { limit: 100 }, 10_000);
  return (
    <Shown of={asked}>
      {(found) => (
        <Table
          caption="Who changed what, newest first"
          rows={found.records.map((one, n) => ({ ...one, n }))}
          id={(one) => String(one.n)}
          columns={[
            { name: "When", of: (one) => <Time at={one.at} /> },
            { name: "Who", of: (one) => one.user },
            { name: "By token", of: (one) => one.token_id },
            { name: "Did", of: (one) => one.action },
            { name: "To", of: (one) => one.target },
            { name: "In detail", of: (one) => one.detail, wide: true },
          ]}
        />
      )}
    </Shown>
  );
}
