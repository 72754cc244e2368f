// Tries failed messages again, and gives up on a message after two more deliveries.
const Pulsar = require('pulsar-client');

(async () => {
  const client = new Pulsar.Client({ serviceUrl: process.env.PULSAR_URL || 'pulsar://localhost:6650' });
  const consumer = await client.subscribe({
    topic: 'example-node-payments', subscription: 'bank', subscriptionType: 'Shared', nAckRedeliverTimeoutMs: 200,
    deadLetterPolicy: {
      deadLetterTopic: 'example-node-failed', maxRedeliverCount: 2, initialSubscriptionName: 'inspection',
    },
  });
  const failed = await client.subscribe({ topic: 'example-node-failed', subscription: 'inspection' });
  const producer = await client.createProducer({ topic: 'example-node-payments' });
  for (const amount of ['10', '20', 'not a number', '30']) await producer.send({ data: Buffer.from(amount) });

  let paid = 0;
  for (;;) {
    const message = await consumer.receive(3000).catch(() => null); // no message within 3 s
    if (message === null) break;
    const amount = Number(message.getData().toString());
    if (Number.isNaN(amount)) {
      consumer.negativeAcknowledge(message); // delivered again after 200 ms
    } else {
      paid += amount;
      await consumer.acknowledge(message);
    }
  }
  console.log('paid:', paid);
  const letter = await failed.receive(10000);
  console.log('dead letter:', letter.getData().toString());
  await failed.acknowledge(letter);
  await client.close();
})();
