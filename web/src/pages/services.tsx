import type { ReplicaDocument, ServiceDocument, ServiceLink, ServiceList } from "../api.d.ts";
import { propose } from "../changes.tsx";
import { count, many, shellLine, span } from "../format.ts";
import { ask, useAsked } from "../hub.ts";
import { may, user } from "../session.ts";
import { Card, Empty, Facts, Lead, Shown, State, Table, Time } from "../ui.tsx";

export function Services() {
  const asked = useAsked<ServiceList>("/services", {}, 3000);
  return (
    <>
      <h1>Services</h1>
      <Shown of={asked}>
        {(found) =>
          found.services.length ? (
            <>
              <Lead>{sayAll(found.services)}</Lead>
              <Table
                caption="Services"
                rows={found.services}
                id={(one) => one.id}
                link={(one) => `/services/${one.name}`}
                columns={[
                  {
                    name: "Service",
                    of: (one) => <a href={`/ui/services/${one.name}`}>{one.name}</a>,
                    wide: true,
                  },
                  { name: "State", of: (one) => <State of={one.state} /> },
                  { name: "Ready", of: (one) => `${one.ready} of ${one.replicas}`, right: true },
                  { name: "User", of: (one) => one.user },
                  { name: "Queue", of: (one) => one.queue },
                  { name: "Revision", of: (one) => `${one.revision}${one.update ? ` (${one.update})` : ""}` },
                  { name: "How it is", of: (one) => one.summary, wide: true },
                ]}
              />
            </>
          ) : (
            <Empty command="dray serve --name hello --port http -- python -m http.server '{port.http}'">
              No service runs. One is a command that goes on until it is stopped, in replicas, reached through
              the hub:
            </Empty>
          )
        }
      </Shown>
    </>
  );
}

function sayAll(of: ServiceDocument[]): string {
  const well = of.filter((one) => one.ready >= one.replicas).length;
  const looping = of.reduce((sum, one) => sum + one.crash_looping, 0);
  return `${many(well, "service")} of ${count(of.length)} ${well === 1 ? "is" : "are"} all ready${looping ? `; ${many(looping, "replica")} fail again and again` : ""}.`;
}

export function Service({ name }: { name: string }) {
  const asked = useAsked<ServiceDocument>(`/services/${name}`, {}, 2000);
  return <Shown of={asked}>{(service) => <Whole service={service} />}</Shown>;
}

function Whole({ service }: { service: ServiceDocument }) {
  const mine = may("submit") && (service.user === user() || may("admin"));
  return (
    <>
      <header class="title">
        <h1>{service.name}</h1>
        <State of={service.state} />
        <div class="buttons">
          {may("submit") ? <Open name={service.name} /> : null}
          {mine ? <Scale service={service} /> : null}
          {mine ? <Restart service={service} /> : null}
          {mine ? <Stop service={service} /> : null}
        </div>
      </header>
      <Lead>{service.summary || `${service.ready} of ${many(service.replicas, "replica")} ready.`}</Lead>
      <Facts
        rows={[
          ["user", service.user],
          ["queue", service.queue],
          ["submitted", <Time at={service.submitted_at} />],
          ["shared with", (service.share ?? []).join(", ")],
          ["revision", service.revision],
          ["update", service.update],
          ["job", <a href={`/ui/jobs/${service.id}`}>{service.id}</a>],
          ["command", <code>{shellLine(service.command)}</code>],
        ]}
      />
      <Card title="Replicas">
        {service.replica_list?.length ? (
          <Replicas of={service.replica_list} />
        ) : (
          <p class="faint">It has none now.</p>
        )}
      </Card>
      {(service.revisions?.length ?? 0) > 1 ? (
        <Card title="Revisions">
          <Table
            caption="Revisions"
            rows={service.revisions}
            id={(one) => String(one.number)}
            columns={[
              { name: "Number", of: (one) => `${one.number}${one.current ? " (current)" : ""}` },
              { name: "When", of: (one) => <Time at={one.at} /> },
              { name: "By", of: (one) => one.user },
              { name: "What", of: (one) => one.kind },
              { name: "Outcome", of: (one) => `${one.outcome} ${one.why}`, wide: true },
            ]}
          />
        </Card>
      ) : null}
    </>
  );
}

function Replicas({ of }: { of: ReplicaDocument[] }) {
  return (
    <Table
      caption="Replicas"
      rows={of}
      id={(one) => one.id}
      columns={[
        { name: "Replica", of: (one) => one.index, right: true },
        { name: "Health", of: (one) => <State of={one.health === "ready" ? "ready" : one.health} /> },
        {
          name: "Worker",
          of: (one) => (one.worker ? <a href={`/ui/workers/${one.worker}`}>{one.worker}</a> : ""),
        },
        {
          name: "Address",
          of: (one) =>
            one.address
              ? `${one.address} ${Object.entries(one.ports ?? {})
                  .map(([port, at]) => `${port} ${at}`)
                  .join(", ")}`
              : "",
          wide: true,
        },
        { name: "Started", of: (one) => <Time at={one.started_at} /> },
        { name: "Restarts", of: (one) => one.restarts, right: true },
        {
          name: "Last trouble",
          of: (one) =>
            `${one.message || one.last_error}${!one.next_try_in_s ? "" : `; next try in ${span(one.next_try_in_s)}`}`,
          wide: true,
        },
      ]}
    />
  );
}

// A link that is good once, opened where the service's own pages are.
function Open({ name }: { name: string }) {
  const open = async () => {
    const tab = window.open("about:blank", "_blank");
    try {
      const link = await ask<ServiceLink>("POST", `/services/${name}/link`);
      const port = window.location.port ? `:${window.location.port}` : "";
      const host = link.host ? `${link.host}${port}` : window.location.host;
      const to = `${window.location.protocol}//${host}${link.path}`;
      if (tab) {
        tab.opener = null;
        tab.location.href = to;
      }
    } catch {
      tab?.close();
    }
  };
  return (
    <button type="button" class="first" onClick={open}>
      Open
    </button>
  );
}

function Scale({ service }: { service: ServiceDocument }) {
  const to = (replicas: number) => async () => {
    await ask("POST", `/services/${service.name}/scale`, { body: { replicas } });
    return (
      <p>
        {service.name} has {many(replicas, "replica")} from now on.
      </p>
    );
  };
  const by = (step: number) =>
    propose({
      title: step > 0 ? "Add a replica" : "Take a replica away",
      preview: async () => {
        const now = await ask<ServiceDocument>("GET", `/services/${service.name}`);
        return (
          <p>
            {service.name} has {many(now.replicas, "replica")}, {now.ready} ready; it gets{" "}
            {now.replicas + step}.{step < 0 ? " One of them is drained and stopped." : ""}
          </p>
        );
      },
      run: to(service.replicas + step),
      undo: { name: `Undo: ${service.replicas} again`, run: to(service.replicas) },
      grave: step < 0,
    });
  return (
    <>
      <button
        type="button"
        aria-label="Take a replica away"
        disabled={service.replicas <= 0}
        onClick={() => by(-1)}
      >
        −
      </button>
      <button type="button" aria-label="Add a replica" onClick={() => by(1)}>
        +
      </button>
    </>
  );
}

function Restart({ service }: { service: ServiceDocument }) {
  return (
    <button
      type="button"
      onClick={() =>
        propose({
          title: "Restart",
          preview: async () => (
            <p>Its {many(service.replicas, "replica")} start anew, one after the other: the others stay.</p>
          ),
          run: async () => {
            await ask("POST", `/services/${service.name}/restart`, { body: {} });
            return <p>They start anew, one after the other.</p>;
          },
        })
      }
    >
      Restart
    </button>
  );
}

function Stop({ service }: { service: ServiceDocument }) {
  return (
    <button
      type="button"
      class="grave"
      onClick={() =>
        propose({
          title: "Stop it",
          grave: true,
          preview: async () => (
            <p>
              {service.name} ends: {many(service.ready, "ready replica")} {service.ready === 1 ? "is" : "are"}{" "}
              stopped, and whoever uses it loses it.
            </p>
          ),
          run: async () => {
            await ask("POST", `/services/${service.name}/stop`, { body: {} });
            return <p>It is being stopped.</p>;
          },
        })
      }
    >
      Stop
    </button>
  );
}
