// Publishes three messages, and consumes them on a subscription.
const Pulsar = require('pulsar-client');

(async () => {
  const client = new Pulsar.Client({ serviceUrl: process.env.PULSAR_URL || 'pulsar://localhost:6650' });
  const consumer = await client.subscribe({ topic: 'example-node-orders', subscription: 'billing' });
  const producer = await client.createProducer({ topic: 'example-node-orders' });
  for (let number = 0; number < 3; number++) {
    const id = await producer.send({
      data: Buffer.from(`order ${number}`), partitionKey: 'customer-7', properties: { shop: 'north' },
    });
    console.log('on disk:', id.toString());
  }
  for (let number = 0; number < 3; number++) {
    const message = await consumer.receive();
    console.log('received:', message.getData().toString(), message.getPartitionKey(), message.getProperties().shop);
    await consumer.acknowledge(message);
  }
  await client.close();
})();
