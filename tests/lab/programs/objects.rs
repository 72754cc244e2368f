// Objects of Rust with a field of one kind each, encoded by serde_json and apache-avro; Ground.ask says how the program is told.
//
// "write Rust FORMAT KIND" publishes one, "read WRITER FORMAT KIND" reads one that WRITER has published.
use futures::TryStreamExt;
use pulsar::consumer::InitialPosition;
use pulsar::message::proto::{schema::Type, Schema};
use pulsar::{producer, Consumer, ConsumerOptions, DeserializeMessage, Error, Payload, ProducerOptions, Pulsar, SerializeMessage, TokioExecutor};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

type Answer = Result<String, Box<dyn std::error::Error>>;

#[derive(Serialize, Deserialize)]
struct Holder<T> {
    id: i32,
    value: T,
}

#[derive(Serialize, Deserialize)]
struct Inner {
    a: i32,
    b: String,
}

impl Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{{a: {}, b: {}}}", self.a, self.b)
    }
}

#[derive(Serialize, Deserialize)]
struct Octets(#[serde(with = "apache_avro::serde_avro_bytes")] Vec<u8>);

impl Debug for Octets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "x{}", self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

#[derive(Serialize, Deserialize, Debug)]
enum Color {
    RED,
    GREEN,
}

struct Raw(Vec<u8>);

impl DeserializeMessage for Raw {
    type Output = Raw;
    fn deserialize_message(payload: &Payload) -> Raw {
        Raw(payload.data.clone())
    }
}

impl SerializeMessage for Raw {
    fn serialize_message(input: Self) -> Result<producer::Message, Error> {
        Ok(producer::Message { payload: input.0, ..Default::default() })
    }
}

struct Asked<'a> {
    client: &'a Pulsar<TokioExecutor>,
    step: &'a str,
    is_json: bool,
    topic: String,
    definition: String,
}

impl Asked<'_> {
    /// Writes the value, or reads one of its type.
    async fn of<T: Serialize + DeserializeOwned + Debug>(&self, value: T) -> Answer {
        let parsed = || apache_avro::Schema::parse_str(&self.definition);
        let schema = Schema { name: "object".into(), schema_data: self.definition.clone().into_bytes(), r#type: if self.is_json { Type::Json } else { Type::Avro } as i32, ..Default::default() };
        if self.step == "write" {
            let made = Holder { id: 0, value };
            let payload = if self.is_json { serde_json::to_vec(&made)? } else { apache_avro::to_avro_datum(&parsed()?, apache_avro::to_value(&made)?.resolve(&parsed()?)?)? };
            let options = ProducerOptions { schema: Some(schema), ..Default::default() };
            let mut producer = self.client.producer().with_topic(&self.topic).with_options(options).build().await?;
            producer.send_non_blocking(Raw(payload)).await?.await?;
            return Ok("done".into());
        }
        let options = ConsumerOptions { initial_position: InitialPosition::Earliest, ..Default::default() };
        let mut consumer: Consumer<Raw, _> = self.client.consumer().with_topic(&self.topic).with_subscription("rust").with_options(options).build().await?;
        let message = tokio::time::timeout(Duration::from_secs(15), consumer.try_next()).await??.ok_or("the stream ended")?;
        let payload = message.deserialize().0;
        let got: Holder<T> = if self.is_json { serde_json::from_slice(&payload)? } else { apache_avro::from_value(&apache_avro::from_avro_datum(&parsed()?, &mut &payload[..], None)?)? };
        Ok(format!("{:?}", got.value))
    }
}

async fn run(asked: &Asked<'_>, kind: &str) -> Answer {
    let unquoted = |text: Answer| text.map(|text| serde_json::from_str(&text).unwrap_or(text));
    match kind {
        "bool" => asked.of(true).await,
        "int8" => asked.of(-6i8).await,
        "int32" => asked.of(i32::MIN).await,
        "int64" => asked.of((1i64 << 53) + 1).await,
        "uint64" => asked.of(u64::MAX).await,
        "float" => asked.of(0.25f32).await,
        "double" => asked.of(0.1f64).await,
        "nan" => asked.of(f64::NAN).await,
        "char" => asked.of('ß').await.map(|text| text.trim_matches('\'').to_string()),
        "text" => unquoted(asked.of("Zoë 🙂 \\ \"q\"".to_string()).await),
        "bytes" => asked.of(Octets(vec![0, 255, b'a'])).await,
        "enum" => asked.of(Color::GREEN).await,
        "date" if !asked.is_json => asked.of(19782i32).await,
        "time" if !asked.is_json => asked.of(1706696130123i64).await,
        "decimal" if !asked.is_json => Ok("lacks: serde has no decimals".into()),
        "date" => unquoted(asked.of("2024-02-29".to_string()).await),
        "time" => unquoted(asked.of("2024-01-31T10:15:30.123Z".to_string()).await),
        "decimal" => unquoted(asked.of("12.25".to_string()).await),
        "uuid" => unquoted(asked.of("00000000-0000-0001-0000-000000000002".to_string()).await),
        "list" => asked.of(vec![1i32, 2]).await,
        "map" => asked.of(HashMap::from([("a".to_string(), (1i64 << 53) + 1)])).await.map(|text| text.replace('"', "")),
        "nested" => asked.of(Inner { a: 1, b: "x".into() }).await,
        "null" => asked.of(None::<i32>).await.map(|text| text.replace("None", "null")),
        "optional" => asked.of(Some(7i32)).await.map(|text| text.replace("Some(7)", "7")),
        _ => Ok("lacks: not in this program".into()),
    }
}

#[tokio::main]
async fn main() {
    let told: HashMap<String, String> = serde_json::from_str(&std::env::args().last().unwrap()).unwrap();
    let definitions: HashMap<String, serde_json::Value> = serde_json::from_str(&told["definitions"]).unwrap();
    let client = Pulsar::builder(&told["service"], TokioExecutor).build().await.unwrap();
    for name in told["things"].split(',') {
        let words: Vec<&str> = name.split(' ').collect();
        let (step, kind) = (words[0], words[3]);
        let topic = format!("persistent://public/default/{}-{}", told["prefix"], words[1..].join("-"));
        let asked = Asked { client: &client, step, is_json: words[2] == "JSON", topic, definition: definitions[kind].to_string() };
        let answer = match run(&asked, kind).await {
            Ok(answer) => answer,
            Err(error) => format!("error: {error}"),
        };
        println!("{}", serde_json::json!({"thing": name, "answer": answer}));
    }
    std::process::exit(0);
}
