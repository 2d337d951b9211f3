// Loaded before behind.js: it dies instead of answering a request that says so.
'use strict';

const http = require('node:http');
const writeHead = http.ServerResponse.prototype.writeHead;

http.ServerResponse.prototype.writeHead = function (...words) {
  if (this.req.headers['x-app'] === 'die-after-commit') {
    process.kill(process.pid, 'SIGKILL');
  }
  return writeHead.apply(this, words);
};
