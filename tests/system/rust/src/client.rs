use std::{error::Error, sync::Arc};

use rmcp::{
    ErrorData, RoleClient, Service,
    model::{ClientConfig, ClientRequest, ClientResult, ProtocolVersion, ServerNotification, ServerRequest},
    service::{
        ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions, RequestContext, RunningService,
        ServiceError,
    },
    transport::{IntoTransport, StreamableHttpClientTransport, TokioChildProcess},
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use crate::script::{Answer, Transcript, Verbs};

/// Plays each script that comes as a line on stdin, on a connection of its own, and prints its transcript.
pub async fn play_all() -> Result<(), Box<dyn Error>> {
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let script: Value = serde_json::from_str(&line)?;
        let transport = &script["transport"];
        let transcript = if transport["kind"] == "stdio" {
            let command: Vec<String> = serde_json::from_value(transport["command"].clone())?;
            let mut process = tokio::process::Command::new(&command[0]);
            process.args(&command[1..]);
            for (name, value) in transport["env"].as_object().into_iter().flatten() {
                process.env(name, value.as_str().unwrap_or_default());
            }
            play(&script, TokioChildProcess::new(process)?).await?
        } else {
            let url = transport["url"].as_str().ok_or("a transport without its URL")?;
            play(&script, StreamableHttpClientTransport::from_uri(url)).await?
        };
        println!("{transcript}");
    }
    Ok(())
}

async fn play<T, E, A>(script: &Value, transport: T) -> Result<Value, Box<dyn Error>>
where
    T: IntoTransport<RoleClient, E, A>,
    E: Error + Send + Sync + 'static,
{
    let transcript = Arc::new(Transcript::new(&script["answers"]));
    let lifecycle = match script["mode"].as_str() {
        None | Some("legacy") => ClientLifecycleMode::Initialize,
        _ => ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::LATEST], legacy_version: None },
    };
    let modern = lifecycle != ClientLifecycleMode::Initialize;
    let running = Player(transcript.clone()).serve_with_lifecycle(transport, lifecycle).await?;
    transcript.connected(serde_json::to_value(running.peer_info())?);
    let session = Session { running, transcript: transcript.clone(), modern };
    transcript.play(script["steps"].as_array().ok_or("a script without steps")?, &session).await?;
    session.running.cancel().await?;
    Ok(transcript.dump())
}

/// Answers what a server asks, and hears what it tells.
struct Player(Arc<Transcript>);

impl Service<RoleClient> for Player {
    async fn handle_request(
        &self,
        request: ServerRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        if matches!(request, ServerRequest::PingRequest(_)) {
            return Ok(ClientResult::empty(()));
        }
        let internal = |error: serde_json::Error| ErrorData::internal_error(error.to_string(), None);
        let question = serde_json::to_value(&request).map_err(internal)?;
        let answer = self.0.asked(question);
        match request {
            ServerRequest::CreateMessageRequest(_) => {
                serde_json::from_value(answer).map(|answer| ClientResult::CreateMessageResult(Box::new(answer)))
            }
            ServerRequest::ElicitRequest(_) => serde_json::from_value(answer).map(ClientResult::ElicitResult),
            _ => serde_json::from_value(answer).map(ClientResult::ListRootsResult),
        }
        .map_err(internal)
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        self.0.heard(serde_json::to_value(notification).expect("a message is JSON"));
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        serde_json::from_value(json!({
            "protocolVersion": ProtocolVersion::V_2025_11_25,
            "capabilities": {"roots": {"listChanged": true}, "sampling": {}, "elicitation": {"form": {}, "url": {}}},
            "clientInfo": {"name": "rmcp", "version": "1"},
        }))
        .expect("a client's own declaration is whole")
    }
}

struct Session {
    running: RunningService<RoleClient, Player>,
    transcript: Arc<Transcript>,
    modern: bool,
}

impl Session {
    /// A call's parameters; a stateless call says itself what it wants to hear.
    fn calling(&self, mut params: Value) -> Value {
        if self.modern {
            params["_meta"] = json!({"io.modelcontextprotocol/logLevel": "info"});
        }
        params
    }
}

impl Verbs for Session {
    async fn call(&self, params: Value) -> Result<Answer, Box<dyn Error>> {
        answer(self.running.call_tool(serde_json::from_value(self.calling(params))?).await)
    }

    async fn send(&self, method: &str, params: Value) -> Result<Answer, Box<dyn Error>> {
        answer(self.running.send_request(request(method, params)?).await)
    }

    async fn cancel(&self, params: Value, reported: impl Future<Output = ()>) -> Result<Answer, Box<dyn Error>> {
        let request = request("tools/call", self.calling(params))?;
        let call = self.running.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
        reported.await;
        call.cancel(Some("the script says so".into())).await?;
        Ok(Ok(json!({"cancelled": true})))
    }

    async fn listen(&self, uris: Vec<String>) -> Result<Answer, Box<dyn Error>> {
        if !self.modern {
            for uri in uris {
                self.send("resources/subscribe", json!({"uri": uri})).await?.map_err(|error| error.to_string())?;
            }
            return Ok(Ok(json!({})));
        }
        let filter = json!({"toolsListChanged": true, "resourceSubscriptions": uris});
        let mut subscription = self.running.listen(serde_json::from_value(filter)?).await?;
        let transcript = self.transcript.clone();
        tokio::spawn(async move {
            while let Ok(Some(notification)) = subscription.next().await {
                transcript.heard(serde_json::to_value(notification).expect("a message is JSON"));
            }
        });
        Ok(Ok(json!({})))
    }
}

fn request(method: &str, params: Value) -> Result<ClientRequest, serde_json::Error> {
    serde_json::from_value(json!({"method": method, "params": params}))
}

fn answer(answered: Result<impl serde::Serialize, ServiceError>) -> Result<Answer, Box<dyn Error>> {
    match answered {
        Ok(result) => Ok(Ok(serde_json::to_value(result)?)),
        Err(ServiceError::McpError(error)) => Ok(Err(serde_json::to_value(error)?)),
        Err(lost) => Err(lost.into()),
    }
}
