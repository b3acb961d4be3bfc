import { useSignal } from "@preact/signals";
import type { TargetedSubmitEvent } from "preact";
import { signIn } from "../session.ts";
import { Command } from "../ui.tsx";

export function SignIn({ said = "" }: { said?: string }) {
  const fault = useSignal(said);
  const busy = useSignal(false);
  const submit = async (event: TargetedSubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const field = event.currentTarget.elements.namedItem("token") as HTMLInputElement;
    busy.value = true;
    fault.value = await signIn({ token: field.value.trim() });
    busy.value = false;
    field.value = "";
    if (fault.value) field.focus();
  };
  return (
    <main id="main" class="sign-in" tabIndex={-1}>
      <h1>Sign in</h1>
      <p>On a machine that has a token, this opens the dashboard signed in:</p>
      <Command text="dray ui" />
      <form onSubmit={submit}>
        <label for="token">Or paste a token</label>
        <input id="token" name="token" type="password" autocomplete="off" spellcheck={false} required />
        <button type="submit" disabled={busy.value}>
          Sign in
        </button>
      </form>
      {fault.value ? (
        <p class="fault" role="alert">
          {fault.value}
        </p>
      ) : null}
      <p class="faint">
        The token is not kept here: the browser gets a session of its own, for 12 hours, that ends with the
        token.
      </p>
    </main>
  );
}
