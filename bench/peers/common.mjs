// common.mjs - what the peers' programs share: arguments, the HTTP call that
// their handlers make, and the talk with the script that measures them.
//
//   node graphile.mjs fill URL COUNT
//   node graphile.mjs work URL http://HOST:PORT|none CONCURRENCY BATCH
//
// `work` prints "ready", waits for a line on standard input, works, prints how
// many jobs its handlers have finished whenever that has changed, and ends when
// standard input does.
import { createInterface } from "node:readline";
import { Pool } from "undici";

export const [mode, database, ...rest] = process.argv.slice(2);
export const count = Number(rest[0]);
export const [provider, concurrency, batch] = [
  rest[0], Number(rest[1]), Number(rest[2]),
];

export const body = JSON.stringify({
  amount: 4200, currency: "eur", customer: "cus_1",
});

const calls = provider && provider.startsWith("http")
  ? new Pool(provider, { connections: concurrency, pipelining: 1 }) : null;
let finished = 0;

/** The job: one charge, with the job's own id as its key. */
export async function handle(id, charge) {
  if (calls) {
    const response = await calls.request({
      method: "POST", path: "/v1/charges", body: charge,
      headers: { "content-type": "application/json", "idempotency-key": id },
    });
    const text = await response.body.text();
    if (response.statusCode !== 201) {
      throw new Error(`${response.statusCode}: ${text}`);
    }
  }
  finished++;
}

/** Calls `start` on the signal, then reports until the reader is gone. */
export async function serve(start, stop) {
  const lines = createInterface({ input: process.stdin })[
    Symbol.asyncIterator]();
  let told = 0;
  console.log("ready");
  await lines.next();
  await start();
  const timer = setInterval(() => {
    if (finished !== told) {
      told = finished;
      console.log(told);
    }
  }, 10);
  while (!(await lines.next()).done);
  clearInterval(timer);
  await stop();
  await calls?.close();
}
