#![expect(deprecated)] // logging, which the matrix plays all the same

use std::{
    borrow::Cow,
    collections::BTreeMap,
    error::Error,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::*,
    service::{Peer, RequestContext, ServiceError, SubscriptionContext, SubscriptionSink},
    transport::{
        stdio,
        streamable_http_server::{
            StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
        },
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

const MEMO: &str = "matrix://memo";
const PAUSE: Duration = Duration::from_millis(200); // some clients lose progress that they read together with the answer
const LEVELS: [&str; 3] = ["info", "warning", "error"];
const TOOLS: [&str; 13] = [
    "add", "report", "wait", "given_up", "log", "fail", "refuse", "large", "elicit", "sample", "roots", "touch", "grow",
];

/// A server for one session, or for all stateless clients. Its tools are those of tests/system/matrix_server.py.
#[derive(Clone)]
struct Matrix {
    versions: &'static [ProtocolVersion],
    shared: Arc<Mutex<Shared>>,
    level: Arc<Mutex<usize>>, // the index of the least of LEVELS that the session wants
}

/// What all sessions of the server have in common.
#[derive(Default)]
struct Shared {
    grown: usize,
    given_up: Option<watch::Receiver<bool>>,
    sinks: Vec<SubscriptionSink>,
}

impl Matrix {
    fn new(era: &str) -> Self {
        let versions = if era == "legacy" {
            &[ProtocolVersion::V_2025_11_25] as &[ProtocolVersion]
        } else {
            &[ProtocolVersion::V_2026_07_28]
        };
        Self { versions, shared: Arc::default(), level: Arc::default() }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no tool panics")
    }

    fn is_stateless(&self) -> bool {
        self.versions == [ProtocolVersion::V_2026_07_28]
    }

    async fn wait(&self, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let (give_up, given_up) = watch::channel(false);
        self.shared().given_up = Some(given_up);
        tell(context, json!({"progress": 0})).await?;
        context.ct.cancelled().await;
        give_up.send_replace(true);
        Err(ErrorData::internal_error("given up", None))
    }

    async fn await_given_up(&self) -> Result<(), ErrorData> {
        let given_up = self.shared().given_up.clone();
        let mut given_up = given_up.ok_or_else(|| ErrorData::internal_error("nothing waits", None))?;
        given_up.wait_for(|given_up| *given_up).await.map(drop).map_err(internal)
    }

    async fn log(&self, who: &str, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let wanted = if self.is_stateless() {
            context.meta.log_level().map(rank)
        } else {
            Some(*self.level.lock().expect("no tool panics"))
        };
        for level in &LEVELS[wanted.unwrap_or(LEVELS.len())..] {
            let params = json!({"level": level, "logger": "matrix", "data": format!("{who}: {level}")});
            notify(&context.peer, "notifications/message", params).await?;
        }
        Ok(())
    }

    /// The answer to one question, which is put in the era's way; or the request to answer it.
    async fn ask(
        &self,
        question: Value,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.is_stateless() {
            let answer = context.peer.send_request(parsed(question)?).await.map_err(refused)?;
            return text(serde_json::to_string(&answer).map_err(internal)?);
        }
        match request.input_responses.as_ref().and_then(|answers| answers.get("answer")) {
            Some(answer) => text(answer.to_string()),
            None => {
                Ok(InputRequiredResult::new(Some(BTreeMap::from([("answer".into(), parsed(question)?)])), None).into())
            }
        }
    }

    /// Tells of a change: the session's client, or each stateless client that listens.
    async fn changed(&self, method: &str, params: Value, peer: &Peer<RoleServer>) -> Result<(), ErrorData> {
        if !self.is_stateless() {
            return notify(peer, method, params).await;
        }
        let sinks = self.shared().sinks.clone();
        for sink in sinks {
            // A listener may have gone, or may not have asked for this.
            let _ = sink.send(parsed(json!({"method": method, "params": params}))?).await;
        }
        Ok(())
    }
}

impl ServerHandler for Matrix {
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.versions)
    }

    fn get_info(&self) -> ServerConfig {
        parsed(json!({
            "protocolVersion": self.versions[0],
            "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}},
            "serverInfo": {"name": "matrix", "version": "1"},
        }))
        .expect("a server's own declaration is whole")
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let grown = (1..=self.shared().grown).map(|number| format!("grown_{number}"));
        let names = TOOLS.map(String::from).into_iter().chain(grown);
        let tools: Vec<Value> = names.map(|name| json!({"name": name, "inputSchema": {"type": "object"}})).collect();
        parsed(json!({"tools": tools}))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = Value::Object(request.arguments.clone().unwrap_or_default());
        let number = |name: &str| given[name].as_u64().unwrap_or_default();
        match request.name.as_ref() {
            "report" => {
                for done in 1..=3 {
                    tell(&context, json!({"progress": done, "total": 3})).await?;
                }
                tokio::time::sleep(PAUSE).await;
            }
            "wait" => self.wait(&context).await?,
            "given_up" => self.await_given_up().await?,
            "log" => self.log(given["who"].as_str().unwrap_or_default(), &context).await?,
            "fail" => return Ok(CallToolResult::error(vec![ContentBlock::text("it did not work")]).into()),
            "refuse" => {
                return Err(ErrorData::new(ErrorCode(-31999), "no, and this is why", Some(json!({"kept": [1]}))));
            }
            "large" => return text("x".repeat(number("size") as usize)),
            "elicit" => {
                let form = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
                let params = json!({"mode": "form", "message": "Who are you?", "requestedSchema": form});
                return self.ask(json!({"method": "elicitation/create", "params": params}), &request, &context).await;
            }
            "sample" => {
                let messages = json!([{"role": "user", "content": {"type": "text", "text": "how are you?"}}]);
                let params = json!({"maxTokens": 7, "messages": messages});
                return self
                    .ask(json!({"method": "sampling/createMessage", "params": params}), &request, &context)
                    .await;
            }
            "roots" => return self.ask(json!({"method": "roots/list"}), &request, &context).await,
            "touch" => self.changed("notifications/resources/updated", json!({"uri": MEMO}), &context.peer).await?,
            "grow" => {
                self.shared().grown += 1;
                self.changed("notifications/tools/list_changed", json!({}), &context.peer).await?;
            }
            _ => return text((number("a") + number("b")).to_string()),
        }
        text(format!("{}: done", request.name))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        parsed(json!({"resources": [{"uri": MEMO, "name": "memo"}]}))
    }

    async fn read_resource(
        &self,
        _: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let memo: ReadResourceResult = parsed(json!({"contents": [{"uri": MEMO, "text": "hello"}]}))?;
        Ok(memo.into())
    }

    async fn set_level(&self, wanted: SetLevelRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        *self.level.lock().expect("no tool panics") = rank(wanted.level);
        Ok(())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.shared().sinks.push(context.sink().clone());
        context.cancelled().await;
        self.shared().sinks.retain(|sink| sink.id() != context.sink().id());
        Ok(())
    }
}

/// The index of the least of LEVELS that a level asks for.
fn rank(level: LoggingLevel) -> usize {
    match level {
        LoggingLevel::Debug | LoggingLevel::Info => 0,
        LoggingLevel::Notice | LoggingLevel::Warning => 1,
        _ => 2,
    }
}

async fn tell(context: &RequestContext<RoleServer>, mut progress: Value) -> Result<(), ErrorData> {
    let Some(token) = context.meta.get_progress_token() else { return Ok(()) };
    progress["progressToken"] = serde_json::to_value(token).map_err(internal)?;
    notify(&context.peer, "notifications/progress", progress).await
}

async fn notify(peer: &Peer<RoleServer>, method: &str, params: Value) -> Result<(), ErrorData> {
    peer.send_notification(parsed(json!({"method": method, "params": params}))?).await.map_err(internal)
}

fn text(said: String) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(said)]).into())
}

fn parsed<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(internal)
}

fn internal(error: impl Error) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn refused(error: ServiceError) -> ErrorData {
    match error {
        ServiceError::McpError(error) => error,
        lost => internal(lost),
    }
}

pub async fn serve_stdio(era: &str) -> Result<(), Box<dyn Error>> {
    Matrix::new(era).serve(stdio()).await?.waiting().await?;
    Ok(())
}

pub async fn serve_http(era: &str, port: u16) -> Result<(), Box<dyn Error>> {
    let matrix = Matrix::new(era);
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(era == "legacy");
    let session = move || Ok(Matrix { level: Arc::default(), ..matrix.clone() });
    let service = StreamableHttpService::new(session, Arc::<LocalSessionManager>::default(), config);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let handler = TowerToHyperService::new(service.clone());
        // An error here is a client that hung up.
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), handler));
    }
}
