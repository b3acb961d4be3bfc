// The end of a text that grows: whole lines, and never more than a page can hold. Pure.
export const MOST = 256 * 1024;

export class Tail {
  text = "";
  dropped = false;

  add(piece: string): void {
    this.text += piece;
    if (this.text.length <= MOST) return;
    const from = this.text.indexOf("\n", this.text.length - MOST);
    this.text = this.text.slice(from < 0 ? this.text.length - MOST : from + 1);
    this.dropped = true;
  }
}

// What programs print for terminals: colours are dropped, a line that is written over shows its last state.
export function plain(text: string): string {
  return (
    text
      // biome-ignore lint/suspicious/noControlCharactersInRegex: that is what is looked for
      .replace(/\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b[@-Z\\-_]/g, "")
      .replace(/\r\n/g, "\n")
      .replace(/[^\n]*\r(?=[^\n])/g, "")
  );
}
