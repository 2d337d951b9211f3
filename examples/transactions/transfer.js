#!/usr/bin/env node
// transfer.js - a money transfer that is made once, with pg from npm.
//
//     transfer.js CONNINFO KEY FROM TO AMOUNT     one transfer
//     transfer.js CONNINFO <LINES                 KEY FROM TO AMOUNT on each
//
// Claim, account rows, ledger line, a job for later and the stored response are
// one transaction: all of it or nothing, wherever it is interrupted. A client
// that does not know the outcome of a transfer runs the same again.
'use strict';

const crypto = require('node:crypto');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const { Client } = require('pg');

const TENANT = 'bank';
const SCOPE = 'transfer';
const JSON_TYPE = 'Content-Type: application/json\r\n';
// Another transaction was in the way, nothing happened: run this one again.
const RETRY = ['40001', '40P01', '55P03'];
const PATIENCE = 30000;

// It was not made, and the reason is not one that passes in a moment.
class NotDone extends Error {}

// What the request means: the same key with another one is refused.
function fingerprint({ source, target, amount }) {
  const meaning = `${source} ${target} ${amount}`;
  return 'transfer:' +
    crypto.createHash('sha256').update(meaning).digest('hex');
}

// The business itself; returns what the caller gets.
async function move(client, key, { source, target, amount }) {
  // In order of their names, so that two transfers do not lock crosswise.
  const found = await client.query(
    'SELECT id, balance FROM account WHERE id IN ($1, $2)' +
    ' ORDER BY id FOR UPDATE', [source, target]);
  const balances = new Map(
    found.rows.map((row) => [row.id, Number(row.balance)]));
  if (source === target || balances.size !== 2) {
    return [404, { error: 'no such pair of accounts' }];
  }
  if (balances.get(source) < amount) {
    return [402, { error: 'not enough money', balance: balances.get(source) }];
  }
  await client.query(
    'UPDATE account SET balance = balance - $1 WHERE id = $2',
    [amount, source]);
  await client.query(
    'UPDATE account SET balance = balance + $1 WHERE id = $2',
    [amount, target]);
  const line = await client.query(
    'INSERT INTO ledger (key, source, target, amount)' +
    ' VALUES ($1, $2, $3, $4) RETURNING id', [key, source, target, amount]);
  return [201, { transfer: Number(line.rows[0].id), from: source, to: target,
                 amount }];
}

// Inside a transaction: the response, or null: another client is running it.
async function decide(client, key, order) {
  const claim = await client.query(
    'SELECT verdict, token, status, body, reason' +
    ' FROM latchkey.claim($1, $2, $3, $4)',
    [TENANT, SCOPE, key, fingerprint(order)]);
  const { verdict, token, status: stored, body: kept, reason } = claim.rows[0];
  switch (verdict) {
    case 'NEW': break;
    case 'REPLAY': return { status: stored, body: kept, replayed: true };
    case 'INFLIGHT': return null;
    case 'MISMATCH':
      throw new NotDone('the key was used for another transfer');
    default: throw new NotDone(`${verdict}: ${reason}`);
  }

  const [status, response] = await move(client, key, order);
  const body = Buffer.from(JSON.stringify(response));
  if (status === 201) {
    // Delivered later, by the courier, once this has been committed.
    await client.query(
      "SELECT latchkey.enqueue($1, $2, $3, $4, 'receipt', 'mail'," +
      " '/receipts', 'POST', $5, $6)",
      [TENANT, SCOPE, key, token, JSON_TYPE, body]);
  }
  await client.query(
    'SELECT latchkey.complete($1, $2, $3, $4, $5, $6, $7)',
    [TENANT, SCOPE, key, token, status, JSON_TYPE, body]);
  return { status, body, replayed: false };
}

// Runs work(client) in a transaction on it.
async function transaction(client, work) {
  await client.query('BEGIN');
  try {
    const result = await work(client);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {}); // it may be gone
    throw error;
  }
}

// A connection that is made again when it is lost.
class Bank {
  constructor(conninfo) {
    this.conninfo = conninfo;
    this.client = null;
  }

  async connect() {
    if (!this.client) {
      const client = new Client({ connectionString: this.conninfo });
      client.on('error', () => this.forget(client));
      client.on('end', () => this.forget(client));
      this.client = client;
      await client.connect();
    }
    return this.client;
  }

  forget(client) {
    if (this.client === client) {
      this.client = null;
    }
    client.end().catch(() => {});
  }

  // Until there is a response. A connection that was lost at COMMIT leaves open
  // whether it counts. The same transaction again finds out: REPLAY if it did,
  // NEW if not.
  async transfer(key, order) {
    const deadline = Date.now() + PATIENCE;
    for (let pause = 10; ; pause = Math.min(pause * 2, 500)) {
      let trouble = 'still being made by another client';
      try {
        const response = await transaction(
          await this.connect(), (client) => decide(client, key, order));
        if (response) {
          return response;
        }
      } catch (error) {
        // What has no SQLSTATE, or one of shutting down, has no connection.
        const lost = !(error instanceof NotDone) &&
          (!/^[0-9A-Z]{5}$/.test(error.code ?? '') ||
           /^(08|57P)/.test(error.code));
        if (!lost && !RETRY.includes(error.code)) {
          throw error;
        }
        if (lost && this.client) {
          this.forget(this.client);
        }
        trouble = error.message;
      }
      if (Date.now() > deadline) {
        throw new NotDone(trouble);
      }
      await sleep(Math.random() * pause);
    }
  }

  async close() {
    if (this.client) {
      await this.client.end();
    }
  }
}

async function* orders(words) {
  if (words.length > 0) {
    yield words;
    return;
  }
  for await (const line of readline.createInterface(process.stdin)) {
    yield line.split(' ');
  }
}

async function main(conninfo, ...words) {
  const bank = new Bank(conninfo);
  for await (const [key, source, target, amount] of orders(words)) {
    let said;
    try {
      const { status, body, replayed } = await bank.transfer(
        key, { source, target, amount: Number(amount) });
      said = { key, status, replayed, body: JSON.parse(body) };
    } catch (error) {
      if (!(error instanceof NotDone)) {
        throw error;
      }
      said = { key, error: error.message };
    }
    console.log(JSON.stringify(said));
  }
  await bank.close();
}

if (require.main === module) {
  if (process.argv.length !== 3 && process.argv.length !== 7) {
    console.error('usage: transfer.js CONNINFO [KEY FROM TO AMOUNT]');
    process.exit(2);
  }
  main(...process.argv.slice(2));
} else {
  module.exports = { move, transaction, JSON_TYPE, RETRY };
}
