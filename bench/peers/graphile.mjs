// graphile.mjs - graphile-worker, with the settings that its documentation
// names for speed: a local queue, and completions in batches. BATCH 1: neither.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import {
  batch, body, concurrency, count, database, handle, mode, serve,
} from "./common.mjs";

const logger = new Logger(() => (level, message) => {
  if (level === "error") {
    console.error(message);
  }
});

async function fill() {
  const utils = await makeWorkerUtils({ connectionString: database, logger });
  await utils.migrate();
  for (let left = count; left > 0; left -= 1000) {
    await utils.addJobs(Array.from({ length: Math.min(left, 1000) }, () => ({
      identifier: "charge", payload: { body },
    })));
  }
  await utils.release();
}

async function work() {
  const pgPool = new pg.Pool({
    connectionString: database, max: batch > 1 ? 10 : concurrency + 2,
  });
  let runner;
  pgPool.on("error", () => {});
  pgPool.on("connect", (client) => client.on("error", () => {}));
  await serve(async () => {
    runner = await run({
      pgPool,
      noHandleSignals: true,
      taskList: {
        charge: (payload, helpers) =>
          handle(String(helpers.job.id), payload.body),
      },
      preset: {
        worker: {
          logger,
          concurrentJobs: concurrency,
          pollInterval: 2000,
          ...(batch > 1 ? {
            localQueue: { size: batch },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0,
          } : {}),
        },
      },
    });
  }, async () => {
    await runner.stop();
    await pgPool.end();
  });
}

await (mode === "fill" ? fill() : work());
