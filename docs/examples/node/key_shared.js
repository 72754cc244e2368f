// Shares a subscription between two consumers, and keeps the order of each key.
const Pulsar = require('pulsar-client');

(async () => {
  const client = new Pulsar.Client({ serviceUrl: process.env.PULSAR_URL || 'pulsar://localhost:6650' });
  let left = 20;
  const all = new Promise((done) => {
    for (const name of ['one', 'two']) {
      client.subscribe({
        topic: 'example-node-readings', subscription: 'averages', subscriptionType: 'KeyShared', consumerName: name,
        listener: async (message, consumer) => {
          console.log(message.getPartitionKey(), message.getData().toString(), 'by', name);
          await consumer.acknowledge(message);
          if (--left === 0) done();
        },
      });
    }
  });
  const producer = await client.createProducer({
    topic: 'example-node-readings', batchingEnabled: true, batchingType: 'KeyBasedBatching', // a batch has one key
  });
  for (let number = 0; number < 20; number++) {
    producer.send({ data: Buffer.from(`${number}`), partitionKey: `sensor-${number % 4}` });
  }
  await producer.flush();
  await all;
  await client.close();
})();
