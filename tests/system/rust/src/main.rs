//! The official Rust SDK, rmcp: `matrix play` is a client that plays scripts, `matrix ERA TRANSPORT [PORT]` a server of
//! one era over `stdio` or Streamable HTTP (`http`).

mod client;
mod script;
mod server;

use std::error::Error;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["play"] => client::play_all().await,
        [era, "stdio"] => server::serve_stdio(era).await,
        [era, "http", port] => server::serve_http(era, port.parse()?).await,
        _ => Err("matrix play | matrix ERA stdio | matrix ERA http PORT".into()),
    }
}
