//! A foreign S3 server, behind a proxy that is slow, fails and goes down.
//!
//! The server is moto's: `pip install 'moto[server]'`.

use crate::daemon::{Daemon, folder, image, is_offered};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start() -> Option<Self> {
        Self::with(&[])
    }

    fn with(words: &[&str]) -> Option<Self> {
        let mut command = Command::new("moto_server");
        command.args(["-H", "127.0.0.1", "-p", "0"]).args(words).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                assert!(std::env::var_os("SLAT_REQUIRE_S3").is_none(), "moto_server: {error}");
                println!("skipped: no moto_server ({error}): pip install 'moto[server]'");
                return None;
            }
        };
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        // It prints its address, and then a line for each request.
        let port = lines.find_map(|line| line.split_once("Running on ")?.1.rsplit(':').next()?.parse().ok());
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self { process, port: port.expect("moto_server says where it is") };
        assert!(!words.is_empty() || server.makes_bucket(), "moto_server makes no bucket");
        Some(server)
    }

    fn makes_bucket(&self) -> bool {
        let ask = || -> io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            let host = "s3.us-east-1.amazonaws.com\r\nConnection: close\r\nContent-Length: 0";
            write!(stream, "PUT /bucket HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// A proxy between a store's user and a server.
#[derive(Clone)]
struct Proxy {
    port: u16,
    trouble: Arc<Trouble>,
}

#[derive(Default)]
struct Trouble {
    delay_ms: AtomicU64,
    /// Percentage of requests that fail, half of them after they were carried out.
    percent: AtomicU64,
    is_down: AtomicBool,
    requests: AtomicU64,
}

impl Proxy {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), trouble: Arc::default() };
        let trouble = proxy.trouble.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let trouble = trouble.clone();
                std::thread::spawn(move || _ = serve(&stream, server, &trouble));
            }
        });
        proxy
    }
}

/// Forwards one request; each has a connection of its own.
fn serve(stream: &TcpStream, server: u16, trouble: &Trouble) -> io::Result<()> {
    let (mut reader, mut stream) = (BufReader::new(stream.try_clone()?), stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line == "\r\n" {
            break;
        }
        if !lower.starts_with("connection:") {
            head += &line;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if trouble.is_down.load(Ordering::Relaxed) {
        return Ok(());
    }
    std::thread::sleep(Duration::from_millis(trouble.delay_ms.load(Ordering::Relaxed)));
    // 61 and 100 are coprime, so the failures are spread.
    let lot = trouble.requests.fetch_add(1, Ordering::Relaxed) * 61 % 100;
    let percent = trouble.percent.load(Ordering::Relaxed);
    if lot < percent && lot.is_multiple_of(2) {
        return stream.write_all(b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    }
    let mut upstream = TcpStream::connect(("127.0.0.1", server))?;
    upstream.write_all(head.as_bytes())?;
    upstream.write_all(b"Connection: close\r\n\r\n")?;
    upstream.write_all(&body)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    // An answer that is cut off.
    let end = if lot < percent { answer.len() / 2 } else { answer.len() };
    stream.write_all(&answer[..end])
}

const STORE: &str = "s3://bucket/templates";

fn environment(endpoint: &str) -> [(&str, &str); 4] {
    [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]
}

fn run(endpoint: &str, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
    command.args(words.split(' ')).args(["--store", STORE]).envs(environment(endpoint));
    command.output().unwrap()
}

fn says(endpoint: &str, words: &str) -> String {
    let output = run(endpoint, words);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn guests_of_a_bucket_behind_a_bad_network_see_every_byte_right() {
    let Some(server) = Server::start() else { return };
    let proxy = Proxy::before(server.port);
    let endpoint = format!("http://127.0.0.1:{}", proxy.port);
    let folder = folder("s3");
    let image = image(&folder).display().to_string();
    proxy.trouble.percent.store(5, Ordering::Relaxed);
    proxy.trouble.delay_ms.store(5, Ordering::Relaxed);
    for name in ["twin", "other"] {
        let written = says(&endpoint, &format!("snapshot {image} {name}"));
        assert_eq!(written.contains(" 0 new chunks"), name == "other", "{written}");
    }
    assert!(says(&endpoint, "ls").lines().count() == 2);
    assert!(says(&endpoint, "verify twin").contains("chunks checked, none damaged"));
    assert!(says(&endpoint, "gc").starts_with("0 chunks removed"));
    assert!(!run(&endpoint, "verify none").status.success());

    if is_offered() {
        let flags = "--cache 2M --store-timeout 2";
        let mut daemon = Daemon::of_store(folder.clone(), STORE, flags, &environment(&endpoint));
        let twins = [1, 2]
            .map(|seed| daemon.twin(&format!("--millis 3000 --balloon --seed {seed} --patience-ms 15000")));
        std::thread::sleep(Duration::from_millis(300));
        proxy.trouble.is_down.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(1));
        proxy.trouble.is_down.store(false, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        daemon.kill();
        for twin in twins {
            let report = twin.report();
            assert!(report.is_right() && report.removed > 0, "{report:?}");
        }
    }

    for name in ["twin", "other"] {
        says(&endpoint, &format!("rm {name}"));
    }
    let gc = says(&endpoint, "gc --patience 0");
    assert!(gc.contains(", 0 kept"), "{gc}");
    _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_bucket_that_is_not_there_is_one_clear_error() {
    let Some(server) = Server::start() else { return };
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
    command.args(["verify", "twin", "--store", "s3://none/a"]).envs(environment(&endpoint));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.lines().count() == 1, "{text}");
}

/// Makes an authority, and its certificate for 127.0.0.1. `None`: there is no openssl.
fn certificates(folder: &Path) -> Option<()> {
    let subject = "subjectAltName=IP:127.0.0.1";
    let commands = [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem".to_owned(),
        format!("req -newkey rsa:2048 -nodes -subj /CN=server -addext {subject} -keyout key -out request"),
        "x509 -req -days 2 -in request -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions copy -out cert".into(),
    ];
    for words in commands {
        let mut command = Command::new("openssl");
        let output = command.args(words.split(' ')).current_dir(folder).output();
        let Ok(output) = output.inspect_err(|error| println!("skipped: no openssl: {error}")) else {
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Some(())
}

#[test]
fn a_server_is_believed_by_its_certificate_alone() {
    let folder = folder("s3-tls");
    let Some(()) = certificates(&folder) else { return };
    let file = |name: &str| folder.join(name).display().to_string();
    let Some(server) = Server::with(&["-s", "-c", &file("cert"), "-k", &file("key")]) else { return };
    let endpoint = format!("https://127.0.0.1:{}", server.port);
    let code = "import boto3,sys;boto3.client('s3',endpoint_url=sys.argv[1],verify=sys.argv[2]).create_bucket(Bucket='bucket')";
    let mut python = Command::new("python3");
    let made =
        python.args(["-c", code, &endpoint, &file("ca.pem")]).envs(environment(&endpoint)).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let image = image(&folder).display().to_string();
    let run = |authority: Option<String>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slat-pager"));
        command.args(["snapshot", &image, "twin", "--store", STORE]).envs(environment(&endpoint));
        command.envs(authority.map(|file| ("AWS_CA_BUNDLE", file))).output().unwrap()
    };
    let refused = run(None);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    let believed = run(Some(file("ca.pem")));
    assert!(believed.status.success(), "{}", String::from_utf8_lossy(&believed.stderr));
    std::fs::remove_dir_all(folder).unwrap();
}
