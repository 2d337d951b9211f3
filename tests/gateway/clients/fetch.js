// Node's own fetch with the loop that everybody writes around it.
'use strict';

async function order(url, number) {
  for (;;) {
    try {
      const answer = await fetch(url, {
        method: 'POST',
        headers: {
          'Content-Type': 'application/json',
          'Idempotency-Key': `fetch-${number}`,
          'X-API-Key': 'acme',
        },
        body: JSON.stringify({ order: number }),
      });
      const body = await answer.json();
      if (answer.ok) {
        return body;
      }
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof SyntaxError)) {
        throw error;
      }
    }
  }
}

async function main(url, count) {
  for (let number = 0; number < count; number++) {
    console.log(JSON.stringify(await order(url, number)));
  }
}

main(process.argv[2], Number(process.argv[3]));
