import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, bytes, count, many, percent, shellLine, span, within } from "../src/format.ts";

test("spans and moments read as people say them", () => {
  assert.deepEqual([0, 59, 61, 3600, 5400, 86400 * 2 + 3600].map(span), [
    "0 s",
    "59 s",
    "1 min",
    "1 h",
    "1 h 30 min",
    "2 d 1 h",
  ]);
  const now = Date.parse("2030-01-31T12:00:00Z");
  assert.equal(ago("2030-01-31T11:58:00.000Z", now), "2 min ago");
  assert.equal(ago("2030-01-31T11:59:59.000Z", now), "just now");
  assert.equal(ago("2030-01-31T13:00:00.000Z", now), "in 1 h");
  assert.equal(ago(null, now), "");
  assert.equal(within(null, null), "");
  assert.equal(within(60, 61), "~1 min");
  assert.equal(within(60, 600), "~1 min, p90 10 min");
});

test("numbers are short, and exact where they are small", () => {
  assert.deepEqual([9999, 10000, 1000000].map(count), ["9999", "10,000", "1,000,000"]);
  assert.deepEqual([12, 2048, 5 * 2 ** 30].map(bytes), ["12 B", "2.0 KiB", "5.0 GiB"]);
  assert.deepEqual(
    [many(1, "task"), many(2, "task"), percent(1, 0), percent(1, 3)],
    ["1 task", "2 tasks", "–", "33 %"],
  );
});

test("a command is written as a shell reads it", () => {
  assert.equal(shellLine(["python", "train.py", "--lr=0.1"]), "python train.py --lr=0.1");
  assert.equal(shellLine(["sh", "-c", "echo it's"]), "sh -c 'echo it'\\''s'");
});
