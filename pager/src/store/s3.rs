//! A bucket of S3, or of a server with S3's protocol.

use super::Objects;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientOptions, RetryConfig};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Most bytes of an answer.
const MOST: u64 = 128 << 20;
/// Time without a connection after which a store is out of reach.
const CONNECT: Duration = Duration::from_secs(5);

/// Opens the objects of a bucket, below a prefix. `patience` bounds each request.
///
/// Region, endpoint and credentials come from the environment, as for AWS's own tools: `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, those of containers, web
/// identities and instances; and `AWS_CA_BUNDLE` for an authority of your own.
///
/// # Errors
/// The environment is malformed.
pub fn s3(bucket: &str, prefix: &str, patience: Duration) -> io::Result<Objects> {
    let mut tls = TlsConfig::builder();
    if let Some(file) = std::env::var_os("AWS_CA_BUNDLE") {
        tls = tls.root_certs(authorities(&std::fs::read(file)?)?);
    }
    let agent = Agent::config_builder()
        .tls_config(tls.build())
        .timeout_global(Some(patience))
        .timeout_connect(Some(CONNECT.min(patience)))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections(256)
        .max_idle_connections_per_host(256)
        .build();
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let place = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_allow_http(true)
        .with_retry(retry)
        .with_http_connector(Blocking(agent.into()))
        .build()
        .map_err(io::Error::other)?;
    Ok(Objects::new(Arc::new(place), prefix))
}

fn authorities(pem: &[u8]) -> io::Result<RootCerts> {
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(io::Error::other)? {
            certificates.push(certificate);
        }
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// A client whose requests are made by the thread that waits for them.
#[derive(Debug, Clone)]
struct Blocking(Agent);

impl HttpConnector for Blocking {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Blocking {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        use http_body_util::BodyExt;
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let request = ureq::http::Request::from_parts(parts, &bytes[..]);
        let (parts, mut body) = self.0.run(request).map_err(failed)?.into_parts();
        let bytes = body.with_config().limit(MOST).read_to_vec().map_err(failed)?;
        Ok(HttpResponse::from_parts(parts, bytes.into()))
    }
}

fn failed(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
