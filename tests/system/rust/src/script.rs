//! Plays one script through an SDK's client, and keeps the transcript. Knows no SDK; the form of a script is told in
//! tests/fakes/clients/__init__.py.

use std::{
    error::Error,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{sync::Notify, time::timeout};

const PATIENCE: Duration = Duration::from_secs(60); // that any one step may take

/// What one client met, in the order in which it met it.
#[derive(Default)]
pub struct Transcript {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    server: Value,
    steps: Vec<Value>,
    notifications: Vec<Value>,
    questions: Vec<Value>,
    answers: Map<String, Value>,
    progress: Vec<Value>, // of the step that is under way
    spent: Vec<Value>,    // tokens of the steps before, whose calls may still be reported on
}

/// Sends one request, and returns the result or the JSON-RPC error that it was answered with.
pub trait Verbs {
    async fn call(&self, params: Value) -> Result<Answer, Box<dyn Error>>;
    async fn send(&self, method: &str, params: Value) -> Result<Answer, Box<dyn Error>>;
    /// Makes a call, and cancels it once `reported` returns.
    async fn cancel(&self, params: Value, reported: impl Future<Output = ()>) -> Result<Answer, Box<dyn Error>>;
    async fn listen(&self, uris: Vec<String>) -> Result<Answer, Box<dyn Error>>;
}

pub type Answer = Result<Value, Value>;

impl Transcript {
    pub fn new(answers: &Value) -> Self {
        let answers = answers.as_object().cloned().unwrap_or_default();
        Self { state: Mutex::new(State { answers, ..State::default() }), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no step panics")
    }

    pub fn connected(&self, server: Value) {
        self.state().server = server;
    }

    /// Notes a notification; progress stands with its step.
    pub fn heard(&self, notification: Value) {
        if notification["method"] == "notifications/progress" {
            let params = &notification["params"];
            let mut state = self.state();
            if !state.spent.contains(&params["progressToken"]) {
                state.progress.push(params.clone());
                self.news.notify_waiters();
            }
        } else {
            self.state().notifications.push(notification);
            self.news.notify_waiters();
        }
    }

    /// Notes a question, and returns the script's answer.
    pub fn asked(&self, question: Value) -> Value {
        let mut state = self.state();
        let answer = state.answers[question["method"].as_str().unwrap_or_default()].clone();
        state.questions.push(question);
        answer
    }

    /// Returns once `happened`, which is asked with each notification.
    async fn until(&self, happened: impl Fn(&State) -> bool) {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if happened(&self.state()) {
                return;
            }
            news.await;
        }
    }

    /// Takes each step in turn.
    pub async fn play(&self, steps: &[Value], verbs: &impl Verbs) -> Result<(), Box<dyn Error>> {
        let mut began = 0;
        for step in steps {
            let before = began;
            {
                let mut state = self.state();
                began = state.notifications.len();
                state.answers.extend(step["answers"].as_object().cloned().unwrap_or_default());
            }
            let mut met = match timeout(PATIENCE, self.take(step, before, verbs)).await {
                Err(_) => json!({"late": true}),
                Ok(answer) => match answer? {
                    Ok(Value::Null) => json!({}),
                    Ok(result) => json!({"result": result}),
                    Err(error) => json!({"error": error}),
                },
            };
            met["do"] = step["do"].clone();
            let mut state = self.state();
            let progress = std::mem::take(&mut state.progress);
            state.spent.extend(progress.iter().map(|report| report["progressToken"].clone()));
            if !progress.is_empty() && step["quiet"] != true {
                let reports =
                    progress.iter().map(|report| json!([report["progress"], report["total"], report["message"]]));
                met["progress"] = reports.collect();
            }
            state.steps.push(met);
        }
        Ok(())
    }

    async fn take(&self, step: &Value, since: usize, verbs: &impl Verbs) -> Result<Answer, Box<dyn Error>> {
        let params = || step.get("params").cloned().unwrap_or_else(|| json!({}));
        match step["do"].as_str().unwrap_or_default() {
            "await" => {
                // From the one on that came since the step before began.
                self.until(|state| state.notifications[since..].iter().any(|one| one["method"] == step["method"]))
                    .await;
                Ok(Ok(Value::Null))
            }
            "tools/call" => verbs.call(params()).await,
            "cancel" => verbs.cancel(params(), self.until(|state| !state.progress.is_empty())).await,
            "listen" => verbs.listen(serde_json::from_value(params()["uris"].clone())?).await,
            list @ ("tools/list" | "resources/list" | "resources/templates/list" | "prompts/list") => {
                drained(list, verbs).await
            }
            method => verbs.send(method, params()).await,
        }
    }

    pub fn dump(&self) -> Value {
        let state = self.state();
        json!({
            "server": state.server,
            "steps": state.steps,
            "notifications": state.notifications,
            "questions": state.questions,
        })
    }
}

/// All pages of a list as one.
async fn drained(method: &str, verbs: &impl Verbs) -> Result<Answer, Box<dyn Error>> {
    let member =
        if method == "resources/templates/list" { "resourceTemplates" } else { method.trim_end_matches("/list") };
    let mut entries = Vec::new();
    let mut params = json!({});
    loop {
        match verbs.send(method, params).await? {
            Err(error) => return Ok(Err(error)),
            Ok(mut page) => {
                entries.append(page[member].as_array_mut().ok_or("a page without its list")?);
                match page.get("nextCursor") {
                    None | Some(Value::Null) => return Ok(Ok(json!({member: entries}))),
                    Some(cursor) => params = json!({"cursor": cursor}),
                }
            }
        }
    }
}
