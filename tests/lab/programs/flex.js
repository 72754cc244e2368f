// What the lab asks of pulsar-flex, a client for Node in JavaScript; Ground.ask says how the program is told.
"use strict";
const readline = require("readline");
const { Producer, Consumer, logLevel } = require("pulsar-flex");

const told = JSON.parse(process.argv[process.argv.length - 1]);
const PATIENCE = 15000;
const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const quiet = () => () => {};
const numbered = (count, prefix = "m") => [...Array(count).keys()].map((n) => prefix + n);

function where(options) {
  return { discoveryServers: [told.service.replace("pulsar://", "")], logCreator: quiet, logLevel: logLevel.ERROR, ...options };
}

async function please(wish) {
  console.log(JSON.stringify(wish));
  const answer = (await answers.next()).value;
  if (answer !== "done") throw new Error("administration: " + answer);
}

async function producer(topic, options = {}) {
  const made = new Producer(where({ topic, producerAccessMode: Producer.ACCESS_MODES.SHARED, ...options }));
  await made.create();
  return made;
}

async function consumer(topic, options = {}) {
  const made = new Consumer(where({ topic, subscription: "s", subType: Consumer.SUB_TYPES.EXCLUSIVE, consumerName: "c",
    receiveQueueSize: 100, ...options }));
  await made.subscribe();
  const got = [];
  return { made, got, run: (onMessage) => made.run({ onMessage: async (event) => { got.push(event); if (onMessage) await onMessage(event); else await event.ack(); }, autoAck: false }) };
}

async function came(got, count) {
  const until = Date.now() + PATIENCE;
  while (got.length < count && Date.now() < until) await pause(20);
  return got.map((event) => event.message.toString());
}

function said(data, expected) {
  if (data.join() === expected.join()) return data.length + " in order";
  if ([...data].sort().join() === [...expected].sort().join()) return data.length + " out of order";
  return `${data.length} came, ${expected.filter((one) => !data.includes(one)).length} missing, ${data.length - new Set(data).size} twice`;
}

const things = {
  exclusive: async (topic) => {
    const c = await consumer(topic);
    let second = "second admitted";
    try { await consumer(topic); } catch (refused) { second = "second refused"; }
    const p = await producer(topic);
    for (const payload of numbered(20)) await p.sendMessage({ payload });
    await c.run();
    return said(await came(c.got, 20), numbered(20)) + ", " + second;
  },
  shared: async (topic) => {
    const options = { subType: Consumer.SUB_TYPES.SHARED, receiveQueueSize: 6 };
    const [a, b] = [await consumer(topic, options), await consumer(topic, options)];
    const p = await producer(topic);
    await a.run(); await b.run();
    for (const payload of numbered(60)) await p.sendMessage({ payload });
    const until = Date.now() + PATIENCE;
    while (a.got.length + b.got.length < 60 && Date.now() < until) await pause(20);
    const data = [...a.got, ...b.got].map((event) => event.message.toString());
    return `${new Set(data).size} of ${data.length}, ` + (a.got.length && b.got.length ? "both have some" : "one has none");
  },
  "batches of mixed keys": async (topic) => {
    const c = await consumer(topic);
    const p = await producer(topic);
    await p.sendBatch({ messages: numbered(30, "").map((payload) => ({ payload, properties: { n: payload } })) });
    await c.run();
    const data = await came(c.got, 30);
    const kept = c.got.every((event) => JSON.stringify(event.properties).includes(event.message.toString()));
    return said(data, numbered(30, "")) + (kept ? ", keys kept" : ", keys lost");
  },
  "cumulative acknowledgement": async (topic) => {
    const c = await consumer(topic);
    const p = await producer(topic);
    for (const payload of numbered(10)) await p.sendMessage({ payload });
    await c.run(async (event) => { if (event.message.toString() === "m5") await event.ack({ type: Consumer.ACK_TYPES.CUMULATIVE }); });
    await came(c.got, 10);
    await please({ please: "restart" });      // the client cannot close a consumer alone
    await came(c.got, 14);
    return "others come again: " + said(c.got.slice(10).map((event) => event.message.toString()), numbered(10).slice(6));
  },
  "negative acknowledgement": async (topic) => {
    const c = await consumer(topic, { subType: Consumer.SUB_TYPES.SHARED });
    const p = await producer(topic);
    await p.sendMessage({ payload: "again" });
    await c.run(async (event) => event.ack(c.got.length === 1 ? { type: Consumer.ACK_TYPES.NEGATIVE } : undefined));
    await came(c.got, 2);
    const last = c.got[c.got.length - 1];
    return `${last.message}, count ${last.redeliveryCount}`;
  },
  "broker started again": async (topic) => {
    const c = await consumer(topic);
    const p = await producer(topic);
    await c.run();
    for (const payload of numbered(10)) await p.sendMessage({ payload });
    await came(c.got, 10);
    await please({ please: "restart" });
    for (const payload of numbered(10, "n")) {
      const until = Date.now() + 40000;
      for (;;) {
        try { await p.sendMessage({ payload }); break; } catch (error) { if (Date.now() > until) throw error; await pause(500); }
      }
    }
    const until = Date.now() + 2 * PATIENCE;
    const unique = () => [...new Set(c.got.map((event) => event.message.toString()))];
    while (unique().length < 20 && Date.now() < until) await pause(50);
    const all = unique();
    return `${all.length} of 20, ` + (all.join() === [...numbered(10), ...numbered(10, "n")].join() ? "in order" : "out of order");
  },
  unsubscribe: async (topic) => {
    const c = await consumer(topic);
    const p = await producer(topic);
    for (const payload of numbered(3)) await p.sendMessage({ payload });
    await c.made.unsubscribe();
    const again = await consumer(topic, { initialPosition: Consumer.INITIAL_POSITION.EARLIEST });
    await again.run();
    return said(await came(again.got, 3), numbered(3));
  },
  "exclusive producer": async (topic) => {
    await producer(topic, { producerAccessMode: Producer.ACCESS_MODES.EXCLUSIVE });
    try { await producer(topic, { producerAccessMode: Producer.ACCESS_MODES.EXCLUSIVE }); } catch (refused) { return "second refused"; }
    return "second admitted";
  },
  "forged token": (topic) => refused(topic, told.forged),
  "expired token": (topic) => refused(topic, told.expired),
};

async function refused(topic, jwt) {
  try { await producer(topic, { jwt }); } catch (error) { return "refused"; }
  return "admitted";
}

async function main() {
  for (const name of told.things.split(",")) {
    let answer;
    try {
      answer = things[name] ? await things[name](`persistent://public/default/${told.prefix}-${name.replaceAll(" ", "-")}`)
        : "lacks: not in this program";
    } catch (error) {
      answer = `${error.constructor.name}: ${error.message}`;
    }
    console.log(JSON.stringify({ thing: name, answer }));
  }
  process.exit(0);
}

process.on("unhandledRejection", (error) => console.error(error));
main();
