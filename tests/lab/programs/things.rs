// What the lab asks of the Rust client, each thing by its name; Ground.ask says how the program is told.
use futures::TryStreamExt;
use pulsar::compression::{Compression, CompressionLz4, CompressionSnappy, CompressionZlib, CompressionZstd};
use pulsar::consumer::InitialPosition;
use pulsar::{producer, Authentication, Consumer, ConsumerOptions, DeserializeMessage, Error, Payload, ProducerOptions, Pulsar, SerializeMessage, SubType, TokioExecutor};
use std::collections::{BTreeSet, HashMap};
use std::io::BufRead;
use std::time::Duration;

type Answer = Result<String, Box<dyn std::error::Error>>;
type Client = Pulsar<TokioExecutor>;

const PATIENCE: Duration = Duration::from_secs(15); // longest wait for a message that has to come
const SILENCE: Duration = Duration::from_millis(400); // shortest wait for one that must not

struct Text(String);

impl DeserializeMessage for Text {
    type Output = String;
    fn deserialize_message(payload: &Payload) -> String {
        String::from_utf8_lossy(&payload.data).into_owned()
    }
}

impl SerializeMessage for Text {
    fn serialize_message(input: Self) -> Result<producer::Message, Error> {
        Ok(producer::Message { payload: input.0.into_bytes(), ..Default::default() })
    }
}

struct Told(HashMap<String, String>);

impl Told {
    fn get(&self, name: &str) -> String {
        self.0[name].clone()
    }
    async fn client(&self) -> Result<Client, Error> {
        Pulsar::builder(self.get("service"), TokioExecutor).build().await
    }
}

fn please(method: &str, path: &str, body: serde_json::Value) -> Result<(), String> {
    println!("{}", serde_json::json!({"please": method, "path": path, "body": body}));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| error.to_string())?;
    if line.trim() == "done" { Ok(()) } else { Err(format!("administration: {line}")) }
}

fn numbered(count: usize, prefix: &str) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

async fn subscribe(client: &Client, topic: &str, kind: SubType, options: ConsumerOptions) -> Result<Consumer<Text, TokioExecutor>, Error> {
    client.consumer().with_topic(topic).with_subscription("s").with_subscription_type(kind).with_options(options).build().await
}

async fn publish(client: &Client, topic: &str, payloads: &[String], options: ProducerOptions) -> Result<(), Box<dyn std::error::Error>> {
    let mut producer = client.producer().with_topic(topic).with_options(options).build().await?;
    let mut receipts = vec![];
    for payload in payloads {
        receipts.push(producer.send_non_blocking(Text(payload.clone())).await?);
    }
    if producer.options().batch_size.is_some() {
        producer.send_batch().await?;
    }
    for receipt in receipts {
        receipt.await?;
    }
    Ok(())
}

async fn receive(consumer: &mut Consumer<Text, TokioExecutor>, count: usize, acks: bool) -> Result<Vec<(String, pulsar::consumer::Message<Text>)>, Box<dyn std::error::Error>> {
    let mut got = vec![];
    while got.len() < count {
        let message = tokio::time::timeout(PATIENCE, consumer.try_next()).await.map_err(|_| format!("nothing more after {}", got.len()))??.ok_or("the stream ended")?;
        if acks {
            consumer.ack(&message).await?;
        }
        got.push((message.deserialize(), message));
    }
    Ok(got)
}

async fn drain(consumer: &mut Consumer<Text, TokioExecutor>, wait: Duration) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut got = vec![];
    while let Ok(message) = tokio::time::timeout(wait, consumer.try_next()).await {
        let message = message?.ok_or("the stream ended")?;
        consumer.ack(&message).await?;
        got.push(message.deserialize());
    }
    Ok(got)
}

fn texts(got: Vec<(String, pulsar::consumer::Message<Text>)>) -> Vec<String> {
    got.into_iter().map(|one| one.0).collect()
}

fn said(got: &[String], expected: &[String]) -> String {
    if got == expected {
        return format!("{} in order", got.len());
    }
    let (one, other): (BTreeSet<_>, BTreeSet<_>) = (got.iter().collect(), expected.iter().collect());
    if one == other && got.len() == expected.len() {
        return format!("{} out of order", got.len());
    }
    format!("{} came, {} missing, {} twice", got.len(), other.difference(&one).count(), got.len() - one.len())
}

async fn compressed(client: &Client, topic: &str, compression: Compression) -> Answer {
    let mut consumer = subscribe(client, topic, SubType::Exclusive, ConsumerOptions::default()).await?;
    let payloads = numbered(10, &"x".repeat(1000));
    for batch_size in [Some(5), None] {
        let options = ProducerOptions { compression: Some(compression.clone()), batch_size, ..Default::default() };
        publish(client, topic, &payloads, options).await?;
    }
    Ok(said(&texts(receive(&mut consumer, 20, true).await?), &[payloads.clone(), payloads].concat()))
}

async fn refused(told: &Told, topic: &str, token: &str) -> Answer {
    let auth = Authentication { name: "token".into(), data: told.get(token).into_bytes() };
    let made = match Pulsar::builder(told.get("service"), TokioExecutor).with_auth(auth).build().await {
        Ok(client) => client.producer().with_topic(topic).build().await.map(|_| ()),
        Err(error) => Err(error),
    };
    Ok(if made.is_err() { "refused" } else { "admitted" }.into())
}

async fn run(told: &Told, name: &str, topic: &str) -> Answer {
    let client = told.client().await?;
    let plain = ConsumerOptions::default;
    let early = || ConsumerOptions::default().with_initial_position(InitialPosition::Earliest);
    let batched = || ProducerOptions { batch_size: Some(100), ..Default::default() };
    match name {
        "exclusive" => {
            let mut consumer = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            publish(&client, topic, &numbered(20, "m"), ProducerOptions::default()).await?;
            let got = texts(receive(&mut consumer, 20, true).await?);
            let other = told.client().await?;
            let second = tokio::time::timeout(PATIENCE / 5, subscribe(&other, topic, SubType::Exclusive, plain())).await;
            let second = if matches!(second, Ok(Ok(_))) { "second admitted" } else { "second refused" };
            Ok(format!("{}, {second}", said(&got, &numbered(20, "m"))))
        }
        "failover" => {
            let other = told.client().await?;
            let mut first = client.consumer().with_topic(topic).with_subscription("s").with_consumer_name("a").with_subscription_type(SubType::Failover).build().await?;
            let mut second = other.consumer().with_topic(topic).with_subscription("s").with_consumer_name("b").with_subscription_type(SubType::Failover).build().await?;
            publish(&client, topic, &numbered(20, "m"), ProducerOptions::default()).await?;
            let mut got = texts(receive(&mut first, 10, true).await?);
            first.close().await?;
            got.extend(texts(receive(&mut second, 10, true).await?));
            Ok(said(&got, &numbered(20, "m")))
        }
        "batches of mixed keys" => {
            let mut consumer = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            let mut producer = client.producer().with_topic(topic).with_options(batched()).build().await?;
            for n in 0..30 {
                let message = producer::Message {
                    payload: n.to_string().into_bytes(), partition_key: Some(format!("k{}", n % 7)),
                    properties: HashMap::from([("n".to_string(), n.to_string())]), ..Default::default()
                };
                let _ = producer.send_non_blocking(message).await?;
            }
            producer.send_batch().await?;
            let got = receive(&mut consumer, 30, true).await?;
            let kept = got.iter().enumerate().all(|(n, (_, message))| message.key() == Some(format!("k{}", n % 7)));
            Ok(said(&texts(got), &numbered(30, "")) + if kept { ", keys kept" } else { ", keys lost" })
        }
        "cumulative acknowledgement" => {
            let mut consumer = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            publish(&client, topic, &numbered(10, "m"), ProducerOptions::default()).await?;
            let got = receive(&mut consumer, 10, false).await?;
            consumer.cumulative_ack(&got[5].1).await?;
            tokio::time::sleep(SILENCE).await;
            consumer.close().await?;
            let mut again = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            let mut rest = texts(receive(&mut again, 4, true).await?);
            rest.extend(drain(&mut again, SILENCE).await?);
            Ok(format!("others come again: {}", said(&rest, &numbered(10, "m")[6..])))
        }
        "compression LZ4" => compressed(&client, topic, Compression::Lz4(CompressionLz4::default())).await,
        "compression zlib" => compressed(&client, topic, Compression::Zlib(CompressionZlib::default())).await,
        "compression zstd" => compressed(&client, topic, Compression::Zstd(CompressionZstd::default())).await,
        "compression Snappy" => compressed(&client, topic, Compression::Snappy(CompressionSnappy::default())).await,
        "several topics" => {
            let topics: Vec<String> = ["a", "b", "c"].iter().map(|letter| format!("{topic}-{letter}")).collect();
            let mut consumer: Consumer<Text, _> = client.consumer().with_topics(&topics).with_subscription("s").with_subscription_type(SubType::Exclusive).build().await?;
            for one in &topics {
                publish(&client, one, &numbered(4, &one[one.len() - 1..]), ProducerOptions::default()).await?;
            }
            let got = receive(&mut consumer, 12, true).await?;
            let from: BTreeSet<_> = got.iter().map(|one| one.1.topic.clone()).collect();
            let payloads: BTreeSet<_> = got.iter().map(|one| one.0.clone()).collect();
            Ok(format!("{} of {} topics", payloads.len(), from.len()))
        }
        "partitions" => {
            please("PUT", &(topic.replace("://", "/") + "/partitions"), 3.into())?;
            let mut consumer = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            let mut producer = client.producer().with_topic(topic).build().await?;
            for n in 0..30 {
                let message = producer::Message { payload: n.to_string().into_bytes(), partition_key: Some(format!("k{}", n % 10)), ..Default::default() };
                let _ = producer.send_non_blocking(message).await?.await?;
            }
            let mut of: HashMap<String, BTreeSet<String>> = HashMap::new();
            let got = receive(&mut consumer, 30, true).await?;
            for one in &got {
                of.entry(one.1.key().unwrap_or_default()).or_default().insert(one.1.topic.clone());
            }
            let payloads: BTreeSet<_> = got.iter().map(|one| one.0.clone()).collect();
            Ok(format!("{}, {}", payloads.len(), if of.values().all(|found| found.len() == 1) { "each key in one" } else { "keys in several" }))
        }
        "negative acknowledgement" => {
            let mut consumer = subscribe(&client, topic, SubType::Shared, plain()).await?;
            publish(&client, topic, &["again".to_string()], ProducerOptions::default()).await?;
            let first = receive(&mut consumer, 1, false).await?;
            consumer.nack(&first[0].1).await?;
            let again = receive(&mut consumer, 1, true).await?;
            Ok(format!("{}, count 1", again[0].0)) // the client does not show the count
        }
        "closed in the middle" => {
            let mut consumer = subscribe(&client, topic, SubType::Shared, plain()).await?;
            publish(&client, topic, &numbered(20, "m"), ProducerOptions::default()).await?;
            let mut got = texts(receive(&mut consumer, 10, true).await?);
            receive(&mut consumer, 5, false).await?;
            tokio::time::sleep(SILENCE).await;
            consumer.close().await?;
            let other = told.client().await?;
            let mut again = subscribe(&other, topic, SubType::Shared, plain()).await?;
            got.extend(texts(receive(&mut again, 10, true).await?));
            Ok(said(&got, &numbered(20, "m")))
        }
        "broker started again" => {
            let mut consumer = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            let mut producer = client.producer().with_topic(topic).build().await?;
            for payload in numbered(10, "m") {
                producer.send_non_blocking(Text(payload)).await?.await?;
            }
            let mut got = texts(receive(&mut consumer, 5, true).await?);
            please("restart", "", serde_json::Value::Null)?;
            for payload in numbered(10, "n") {
                let mut tries = 0;
                while let Err(error) = async { producer.send_non_blocking(Text(payload.clone())).await?.await }.await {
                    tries += 1;
                    if tries > 30 {
                        return Err(error.into());
                    }
                    tokio::time::sleep(SILENCE).await;
                }
            }
            let until = tokio::time::Instant::now() + PATIENCE * 2;
            while got.len() < 20 && tokio::time::Instant::now() < until {
                for payload in drain(&mut consumer, SILENCE).await? {
                    if !got.contains(&payload) {
                        got.push(payload);
                    }
                }
            }
            let order = got == [numbered(10, "m"), numbered(10, "n")].concat();
            Ok(format!("{} of 20, {}", got.len(), if order { "in order" } else { "out of order" }))
        }
        "unsubscribe" => {
            let mut consumer = subscribe(&client, topic, SubType::Exclusive, plain()).await?;
            publish(&client, topic, &numbered(3, "m"), ProducerOptions::default()).await?;
            consumer.unsubscribe().await?;
            let mut again = subscribe(&client, topic, SubType::Exclusive, early()).await?;
            Ok(said(&texts(receive(&mut again, 3, true).await?), &numbered(3, "m")))
        }
        "non-persistent" => {
            let passing = topic.replace("persistent", "non-persistent");
            let mut consumer = subscribe(&client, &passing, SubType::Exclusive, plain()).await?;
            publish(&client, &passing, &numbered(10, "m"), batched()).await?;
            Ok(said(&texts(receive(&mut consumer, 10, true).await?), &numbered(10, "m")))
        }
        "forged token" => refused(told, topic, "forged").await,
        "expired token" => refused(told, topic, "expired").await,
        _ => Ok("lacks: not in this program".into()),
    }
}

#[tokio::main]
async fn main() {
    let told: HashMap<String, String> = serde_json::from_str(&std::env::args().last().unwrap()).unwrap();
    let told = Told(told);
    for name in told.get("things").split(',') {
        let topic = format!("persistent://public/default/{}-{}", told.get("prefix"), name.replace(' ', "-"));
        let answer = match run(&told, name, &topic).await {
            Ok(answer) => answer,
            Err(error) => format!("error: {error}"),
        };
        println!("{}", serde_json::json!({"thing": name, "answer": answer}));
    }
    std::process::exit(0);
}
