// Stripe's client, pointed elsewhere: it makes its keys and retries by itself.
'use strict';

const Stripe = require('stripe');

async function main(url, count) {
  const { hostname, port } = new URL(url);
  const stripe = new Stripe('sk_test_latchkey', {
    host: hostname,
    port,
    protocol: 'http',
    maxNetworkRetries: 30,
  });
  // It waits for seconds between attempts, which would prove no more.
  stripe.getInitialNetworkRetryDelay = () => 0.001;
  stripe.getMaxNetworkRetryDelay = () => 0.001;
  for (let number = 0; number < count; number++) {
    const customer = await stripe.customers.create({
      name: 'Ada',
      metadata: { order: number },
    });
    console.log(JSON.stringify(customer));
  }
}

main(process.argv[2], Number(process.argv[3]));
