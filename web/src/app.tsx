import { effect, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { Changes } from "./changes.tsx";
import { ask, reach, recall } from "./hub.ts";
import { help, Keys } from "./keys.tsx";
import { Cluster } from "./pages/cluster.tsx";
import { Failures } from "./pages/failures.tsx";
import { Job } from "./pages/job.tsx";
import { Jobs } from "./pages/jobs.tsx";
import { Queue, Queues } from "./pages/queues.tsx";
import { Service, Services } from "./pages/services.tsx";
import { SignIn } from "./pages/sign_in.tsx";
import { Site } from "./pages/site.tsx";
import { Submit } from "./pages/submit.tsx";
import { Template, Templates } from "./pages/templates.tsx";
import { Timeline } from "./pages/timeline.tsx";
import { WhatIf } from "./pages/whatif.tsx";
import { Worker } from "./pages/worker.tsx";
import { path } from "./route.ts";
import { forget, may, outdated, signIn, user, who } from "./session.ts";
import { choose, theme } from "./theme.ts";
import { Empty } from "./ui.tsx";

const PLACES: [string, string][] = [
  ["/", "Cluster"],
  ["/jobs", "Jobs"],
  ["/timeline", "Timeline"],
  ["/queues", "Queues"],
  ["/failures", "Failures"],
  ["/services", "Services"],
  ["/submit", "Submit"],
  ["/whatif", "What if"],
  ["/hub", "Hub"],
];

function Page() {
  const at = path.value;
  const [, first = "", second = ""] = at.split("/").map(decodeURIComponent);
  if (at === "/") return <Cluster />;
  if (at === "/jobs") return <Jobs />;
  if (at === "/queues") return <Queues />;
  if (at === "/services") return <Services />;
  if (at === "/timeline") return <Timeline />;
  if (at === "/failures") return <Failures />;
  if (at === "/whatif") return <WhatIf />;
  if (at === "/submit") return <Submit />;
  if (at === "/templates") return <Templates />;
  if (at === "/hub") return <Site />;
  if (first === "templates") return <Template key={second} name={second} />;
  if (first === "jobs") return <Job key={second} id={second} />;
  if (first === "workers") return <Worker key={second} id={second} />;
  if (first === "queues") return <Queue key={second} name={second} />;
  if (first === "services") return <Service key={second} name={second} />;
  return (
    <>
      <h1>Nothing here</h1>
      <Empty>There is no page at this address.</Empty>
    </>
  );
}

// A code from `dray ui` comes behind the #, which browsers send nowhere; it leaves the address before it is used.
async function begin(say: (fault: string) => void): Promise<void> {
  const code = new URLSearchParams(window.location.hash.slice(1)).get("code");
  if (!code) return recall();
  window.history.replaceState(null, "", window.location.pathname + window.location.search);
  const fault = await signIn({ code });
  if (!fault) return;
  await recall();
  if (who.value === "nobody") say(fault);
}

export function App() {
  const said = useSignal("");
  useEffect(() => {
    const start = () =>
      void begin((fault) => {
        said.value = fault;
      });
    start();
    // A link of `dray ui` that is opened where the page is open already loads nothing anew.
    window.addEventListener("hashchange", start);
    return effect(() => {
      if (who.value === "unknown" && !window.location.hash) void recall();
    });
  }, []);
  return (
    <>
      <a class="unseen skip" href="#main">
        Skip to the page
      </a>
      <Header />
      {who.value === "nobody" ? (
        <SignIn key={said.value} said={said.value} />
      ) : who.value === "unknown" ? (
        <main id="main" />
      ) : (
        <main id="main" tabIndex={-1}>
          <Page />
        </main>
      )}
      <Changes />
      <Keys />
    </>
  );
}

function Header() {
  const signedIn = typeof who.value === "object";
  return (
    <header class="top">
      <a class="brand" href="/ui/">
        dray
      </a>
      {signedIn ? (
        <nav aria-label="Pages">
          {PLACES.filter(([to]) => to !== "/hub" || may("admin")).map(([to, name]) => (
            <a key={to} href={`/ui${to}`} aria-current={isAt(to) ? "page" : undefined}>
              {name}
            </a>
          ))}
        </nav>
      ) : null}
      <span class="grow" />
      {outdated.value ? (
        <button type="button" onClick={() => window.location.reload()}>
          The hub was upgraded: reload
        </button>
      ) : null}
      {signedIn ? <Reach /> : null}
      {signedIn ? <Me /> : null}
    </header>
  );
}

function isAt(place: string): boolean {
  return place === "/" ? path.value === "/" : path.value === place || path.value.startsWith(`${place}/`);
}

function Reach() {
  const lost = reach.value === "lost";
  return (
    <span class={lost ? "reach lost" : "reach"} role="status">
      {lost ? "reconnecting …" : "live"}
    </span>
  );
}

function Me() {
  const leave = async () => {
    await ask("DELETE", "/session").catch(() => null);
    forget();
  };
  return (
    <details class="menu">
      <summary>{user()}</summary>
      <div>
        <Choice>
          {(["auto", "light", "dark"] as const).map((one) => (
            <button key={one} type="button" aria-pressed={theme.value === one} onClick={() => choose(one)}>
              {one}
            </button>
          ))}
        </Choice>
        <button
          type="button"
          onClick={() => {
            help.value = true;
          }}
        >
          Keys
        </button>
        <button type="button" onClick={leave}>
          Sign out
        </button>
      </div>
    </details>
  );
}

function Choice({ children }: { children: ComponentChildren }) {
  return (
    <fieldset class="choice">
      <legend>Theme</legend>
      {children}
    </fieldset>
  );
}
