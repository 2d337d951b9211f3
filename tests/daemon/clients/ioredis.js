// Runs the commands it reads from standard input, one JSON list a line, on an
// unchanged ioredis, and prints each reply as a line of JSON.
"use strict";

const readline = require("readline");
const Redis = require("ioredis");

// Arguments and replies are bytes; JSON has none, so they travel in base64.
function encode(reply) {
  if (Buffer.isBuffer(reply)) {
    return { bytes: reply.toString("base64") };
  }
  return Array.isArray(reply) ? reply.map(encode) : reply;
}

async function main() {
  const redis = new Redis({ path: process.argv[2] });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const words = JSON.parse(line).map((word) => Buffer.from(word, "base64"));
    const reply = await redis
      .callBuffer(words[0].toString(), ...words.slice(1))
      .catch((error) => ({ error: error.message }));
    console.log(JSON.stringify(encode(reply)));
  }
  await redis.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
