// boss.mjs - pg-boss, with the settings that make it fast: batches that are
// fetched and completed together, and the next one at once while there is more.
// BATCH 1: jobs one by one, as many at a time as there are workers.
import { PgBoss } from "pg-boss";
import {
  batch, body, concurrency, count, database, handle, mode, serve,
} from "./common.mjs";

const QUEUE = "charge";

function make(max) {
  const boss = new PgBoss({
    connectionString: database, max, supervise: false, schedule: false,
  });
  boss.on("error", (error) => console.error(error.message));
  return boss;
}

async function fill() {
  const boss = make(4);
  await boss.start();
  await boss.createQueue(QUEUE);
  for (let left = count; left > 0; left -= 1000) {
    await boss.insert(QUEUE, Array.from(
      { length: Math.min(left, 1000) }, () => ({ data: { body } })));
  }
  await boss.stop({ graceful: false });
}

/** All jobs of a batch, the calls side by side. */
async function each(jobs) {
  await Promise.all(jobs.map((job) => handle(job.id, job.data.body)));
}

async function work() {
  const workers = batch > 1 ? 2 : concurrency;
  const boss = make(workers + 2);
  await boss.start();
  await serve(async () => {
    const options = {
      batchSize: batch, localConcurrency: workers,
      pollingIntervalSeconds: 0.5, burstWhenBatchFull: batch > 1,
    };
    const id = await boss.work(QUEUE, options, async (jobs) => {
      await each(jobs);
      if (batch === 1) {
        boss.notifyWorker(id); // else it would wait for half a second
      }
    });
  }, () => boss.stop({ graceful: false }));
}

await (mode === "fill" ? fill() : work());
