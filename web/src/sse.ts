// Server-sent events out of a stream of text. Pure.
export type Frame = { id: string; event: string; data: string };

export class Frames {
  #held = "";

  // What is whole by now; the rest is held for the next piece.
  take(piece: string): Frame[] {
    this.#held += piece;
    const parts = this.#held.split("\n\n");
    this.#held = parts.pop() ?? "";
    return parts.map(read).filter((frame): frame is Frame => frame !== null);
  }
}

function read(block: string): Frame | null {
  const frame: Frame = { id: "", event: "message", data: "" };
  let found = false;
  for (const line of block.split("\n")) {
    if (line.startsWith(":")) continue;
    const at = line.indexOf(":");
    const field = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (field === "id") frame.id = value;
    else if (field === "event") frame.event = value;
    else if (field === "data") frame.data = frame.data ? `${frame.data}\n${value}` : value;
    else continue;
    found = true;
  }
  return found ? frame : null;
}
