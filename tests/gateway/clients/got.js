// got, told to retry what it would not retry by itself: POST.
'use strict';

const got = require('got');

async function main(url, count) {
  for (let number = 0; number < count; number++) {
    const answer = await got.post(url, {
      headers: { 'Idempotency-Key': `got-${number}`, 'X-API-Key': 'acme' },
      json: { order: number },
      retry: {
        limit: 30,
        methods: ['POST'],
        calculateDelay: ({ computedValue }) => (computedValue ? 1 : 0),
      },
    });
    console.log(answer.body);
  }
}

main(process.argv[2], Number(process.argv[3]));
