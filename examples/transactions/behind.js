#!/usr/bin/env node
// behind.js - the bank behind the gateway, with node:http and pg from npm.
//
//     behind.js CONNINFO PORT
//
// The gateway has claimed the operation before a request comes here. This app
// completes it itself, in the transaction that moves the money: once that is
// committed, the response is stored, whatever happens to the app, to the response
// on its way, or to the gateway.
//
// It must be reachable through the gateway alone: it believes the headers
// Latchkey-Tenant, Latchkey-Scope, Latchkey-Key and Latchkey-Token.
'use strict';

const http = require('node:http');
const { setTimeout: sleep } = require('node:timers/promises');
const { Pool } = require('pg');
const { move, transaction, JSON_TYPE, RETRY } = require('./transfer.js');

// LK001: another client has the operation by now. LK002: it is completed,
// perhaps by a COMMIT of our own whose success we did not hear of.
const SETTLED = ['LK001', 'LK002'];

// Tenant, scope, key and token of the gateway's claim.
function operation(headers) {
  // Bytes of UTF-8, which Node reads as Latin-1.
  const text = (name) => Buffer.from(headers[name], 'latin1').toString();
  return [text('latchkey-tenant'), text('latchkey-scope'),
          text('latchkey-key'), headers['latchkey-token']];
}

// Business and completion in one transaction; the response.
function perform(client, name, { from: source, to: target, amount }) {
  return transaction(client, async () => {
    const [status, response] = await move(
      client, name[2], { source, target, amount });
    const body = Buffer.from(JSON.stringify(response));
    // The last step. If the operation is not ours any more it raises an error,
    // and then nothing of the above has happened.
    await client.query(
      'SELECT latchkey.complete($1, $2, $3, $4, $5, $6, $7)',
      [...name, status, JSON_TYPE, body]);
    return { status, body };
  });
}

async function serve(pool, name, order) {
  for (const pause of [10, 50, 200, null]) {
    const client = await pool.connect();
    let failed;
    try {
      return await perform(client, name, order);
    } catch (error) {
      failed = error;
      if (SETTLED.includes(error.code)) {
        // What is said here is not used: the gateway sends what the operation
        // has become.
        return { status: 409, body: '{"error": "settled elsewhere"}' };
      }
      if (!RETRY.includes(error.code) || pause === null) {
        throw error;
      }
    } finally {
      client.release(failed); // after an error: closed, not used again
    }
    await sleep(pause);
  }
}

async function main(conninfo, port) {
  const pool = new Pool({ connectionString: conninfo, max: 8 });
  pool.on('error', () => {}); // an idle connection was lost
  const server = http.createServer(async (request, response) => {
    let result;
    try {
      const parts = [];
      for await (const part of request) {
        parts.push(part);
      }
      result = await serve(pool, operation(request.headers),
                           JSON.parse(Buffer.concat(parts)));
    } catch (error) {
      // The gateway now releases the operation, and the retry runs; if the
      // transaction was committed after all, the release finds that out and
      // the stored response is sent instead of this one.
      console.error(error.message);
      result = { status: 500, body: '{"error": "try again"}' };
    }
    response.writeHead(result.status, {
      'Content-Type': 'application/json',
      'Content-Length': Buffer.byteLength(result.body),
    });
    response.end(result.body);
  });
  // Longer than nginx keeps an idle connection.
  server.keepAliveTimeout = 75000;
  server.listen(Number(port), '127.0.0.1');
}

if (process.argv.length !== 4) {
  console.error('usage: behind.js CONNINFO PORT');
  process.exit(2);
}
main(...process.argv.slice(2));
