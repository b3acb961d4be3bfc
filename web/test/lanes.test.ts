import assert from "node:assert/strict";
import { test } from "node:test";
import { type Bar, boxAt, LANE, place, ticks } from "../src/lanes.ts";

test("cards have lanes of their own, and work without cards shares as few as it can", () => {
  const bar = (card: number, begin: number, end: number): Bar => [
    card,
    begin,
    end,
    "runs",
    "ada",
    "j",
    0,
    "n",
  ];
  const rows = [
    {
      worker: "w",
      kind: "H100",
      cards: 2,
      bars: [bar(1, 0, 50), bar(-1, 0, 40), bar(-1, 10, 0), bar(-1, 50, 60)],
    },
  ];
  const sheet = place(rows, 0, 100, 1000);
  assert.deepEqual(
    sheet.boxes.map((box) => [box.x, box.width, (box.y - 18) / LANE]),
    [
      [0, 500, 1],
      [0, 400, 2],
      [100, 900, 3],
      [500, 100, 2],
    ],
  );
  assert.equal(boxAt(sheet, 5, 18 + LANE + 2)?.bar[0], 1);
  assert.equal(boxAt(sheet, 999, 2), null);
  assert.equal(place([], 0, 1, 100).height, 0);
});

test("an axis has round moments, and not too many", () => {
  const from = Date.parse("2030-01-31T11:23:00Z");
  const found = ticks(from, from + 12 * 3_600_000, 800);
  assert.ok(found.length > 2 && found.length <= 10);
  assert.ok(found.every((at) => at >= from && new Date(at).getMinutes() === 0));
});
