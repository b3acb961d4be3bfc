import assert from "node:assert/strict";
import { test } from "node:test";
import { lay, spot, under } from "../src/map.ts";
import { Frames } from "../src/sse.ts";

test("each worker has a place of its own, and is found there", () => {
  const group = Array.from({ length: 700 }, (_, n) => n % 3);
  const layout = lay(group, ["b", "a", ""], 300);
  assert.deepEqual(
    layout.groups.map((one) => one.name),
    ["none", "a", "b"],
  );
  assert.equal(new Set(layout.order).size, 700);
  const seen = new Set<string>();
  for (let at = 0; at < 700; at += 1) {
    const { x, y } = spot(layout, at);
    assert.equal(under(layout, x + 1, y + 1), at);
    assert.ok(x + layout.side <= 300 && y + layout.side <= layout.height);
    seen.add(`${x},${y}`);
  }
  assert.equal(seen.size, 700);
  assert.equal(under(layout, 5, 2), -1);
  assert.equal(lay([], [], 300).groups.length, 0);
});

test("frames are read whatever the pieces they come in", () => {
  const text =
    ': hello\n\nid: 7.1\nevent: rows\ndata: {"a":\ndata: 1}\n\nid: 8.1\nevent: ready\ndata: {}\n\nid: 9';
  for (const size of [1, 3, 1000]) {
    const frames = new Frames();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...frames.take(text.slice(at, at + size)));
    assert.deepEqual(found, [
      { id: "7.1", event: "rows", data: '{"a":\n1}' },
      { id: "8.1", event: "ready", data: "{}" },
    ]);
  }
});
