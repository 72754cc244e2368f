// Publishes messages that consumers get later: after a delay, or at a time.
const Pulsar = require('pulsar-client');

(async () => {
  const client = new Pulsar.Client({ serviceUrl: process.env.PULSAR_URL || 'pulsar://localhost:6650' });
  const consumer = await client.subscribe({
    topic: 'example-node-reminders', subscription: 'mailer', subscriptionType: 'Shared',
  });
  const producer = await client.createProducer({ topic: 'example-node-reminders' });
  const begin = Date.now();
  await producer.send({ data: Buffer.from('after two seconds'), deliverAfter: 2000 });
  await producer.send({ data: Buffer.from('after one second'), deliverAt: begin + 1000 });
  await producer.send({ data: Buffer.from('at once') });
  for (let number = 0; number < 3; number++) {
    const message = await consumer.receive();
    console.log(`${((Date.now() - begin) / 1000).toFixed(1)} s: ${message.getData()}`);
    await consumer.acknowledge(message);
  }
  await client.close();
})();
