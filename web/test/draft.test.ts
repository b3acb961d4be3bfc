import assert from "node:assert/strict";
import { test } from "node:test";
import { draft, secondsOf } from "../src/draft.ts";
import { bytesOf, fieldsOf } from "../src/fix.ts";
import { MOST, plain, Tail } from "../src/log.ts";

test("a form becomes a spec, or says what is wrong with it", () => {
  const { spec, faults } = draft({
    command: "python train.py",
    gpus: "8",
    gpu_type: "H100",
    cpus: "1.5",
    memory: "16G",
    time: "2h",
    array: "0-9",
    priority: "-3",
  });
  assert.deepEqual(faults, []);
  assert.deepEqual(spec, {
    command: ["sh", "-c", "python train.py"],
    gpu_count: 8,
    gpu_type: "H100",
    cpu_milli: 1500,
    memory_bytes: 16 * 2 ** 30,
    max_runtime_s: 7200,
    array: { first: 0, last: 9 },
    priority: -3,
  });
  assert.equal(draft({ command: "x", gpus: "0.5" }).spec.gpu_milli, 500);
  assert.equal(draft({ gpus: "many", memory: "big", time: "soon", priority: "1.5" }).faults.length, 5);
  assert.deepEqual(["90", "30m", "2h", "1d", "soon"].map(secondsOf), [90, 1800, 7200, 86400, null]);
});

test("a change that the hub proposes becomes fields of the API", () => {
  assert.deepEqual(fieldsOf("gpus=4"), { gpu_count: 4 });
  assert.deepEqual(fieldsOf("gpus=0.25"), { gpu_milli: 250 });
  assert.deepEqual(fieldsOf("mem=16g"), { memory_bytes: 16 * 2 ** 30 });
  assert.deepEqual(fieldsOf("require="), { require: [] });
  assert.equal(fieldsOf("resources=x"), null);
  assert.equal(bytesOf("1.5 GiB"), 1.5 * 2 ** 30);
});

test("a log keeps its end, in whole lines, and shows text", () => {
  const tail = new Tail();
  for (let n = 0; n < 40000; n += 1) tail.add(`line ${n}\n`);
  assert.ok(tail.text.length <= MOST && tail.dropped && tail.text.startsWith("line "));
  assert.ok(tail.text.endsWith("line 39999\n"));
  assert.equal(plain("\u001b[31mred\u001b[0m\r\n10 %\r20 %\rdone\n"), "red\ndone\n");
});
