// Plays scripts through one SDK's client, and prints the transcript of each. Knows no SDK; the form of a script is told
// in tests/fakes/clients/__init__.py.

import { createInterface } from "node:readline";

const PATIENCE = 60_000; // milliseconds that any one step may take
const HOP_META = ["progressToken", "io.modelcontextprotocol/subscriptionId"];

export const CAPABILITIES = { sampling: {}, elicitation: { form: {}, url: {} }, roots: { listChanged: true } };

export class Transcript {
  server = {};
  steps = [];
  notifications = [];
  questions = [];
  #waiting = [];

  heard({ method, params }) {
    this.notifications.push(params === undefined ? { method } : { method, params });
    this.#waiting = this.#waiting.filter((wait) => !wait());
  }

  asked({ method, params = {} }) {
    const { _meta = {}, ...rest } = params;
    const meta = Object.fromEntries(Object.entries(_meta).filter(([key]) => !HOP_META.includes(key)));
    this.questions.push({ method, params: Object.keys(meta).length ? { ...rest, _meta: meta } : rest });
  }

  // Resolves once a notification of `method` has come, from the one at `since` on.
  hears(method, since) {
    const done = () => this.notifications.slice(since).some((one) => one.method === method);
    return new Promise((resolve) => {
      const wait = () => done() && (resolve(), true);
      if (!wait()) this.#waiting.push(wait);
    });
  }
}

// A list drained to its last page.
const draining = (listPage, member) => async () => {
  const entries = [];
  let cursor;
  do {
    const page = await listPage(cursor === undefined ? undefined : { cursor });
    entries.push(...page[member]);
    cursor = page.nextCursor;
  } while (cursor !== undefined); // the empty string is a cursor
  return { [member]: entries };
};

// The verbs that both generations spell the same; `callTool(params, options)` is each one's own.
const verbs = (client, callTool) => ({
  "tools/call": (params, onprogress) => callTool(params, { onprogress }),
  "resources/read": (params) => client.readResource(params),
  "prompts/get": (params) => client.getPrompt(params),
  "completion/complete": (params) => client.complete(params),
  "logging/setLevel": ({ level }) => client.setLoggingLevel(level),
  "resources/subscribe": (params) => client.subscribeResource(params),
  "resources/unsubscribe": (params) => client.unsubscribeResource(params),
  listen: async ({ uris }) => {
    for (const uri of uris) await client.subscribeResource({ uri });
    return {};
  },
  ping: () => client.ping(),
  "tools/list": draining((params) => client.listTools(params), "tools"),
  "resources/list": draining((params) => client.listResources(params), "resources"),
  "resources/templates/list": draining((params) => client.listResourceTemplates(params), "resourceTemplates"),
  "prompts/list": draining((params) => client.listPrompts(params), "prompts"),
  cancel: async (params) => {
    const giveUp = new AbortController();
    const call = callTool(params, { onprogress: () => giveUp.abort("the script says so"), signal: giveUp.signal });
    await call.then(
      () => { throw new Error("the call was answered before it could be given up"); },
      (reason) => { if (!giveUp.signal.aborted) throw reason; },
    );
    return { cancelled: true };
  },
});

// Resolves to what the step makes of its entry.
const inTime = (step) => {
  let timer;
  const late = new Promise((resolve) => {
    timer = setTimeout(() => resolve({ late: true }), PATIENCE);
  });
  return Promise.race([step, late]).finally(() => clearTimeout(timer));
};

// What an SDK raises for a JSON-RPC error has a numeric code; the first generation puts words of its own in front.
const refusal = ({ code, message, data }) => ({
  code,
  message: message.replace(/^MCP error -?\d+: /, ""),
  ...(data === undefined ? {} : { data }),
});

// `more` are verbs that the client does in ways of its own.
export const play = async (client, { steps, answers }, transcript, callTool, more = {}) => {
  const table = { ...verbs(client, callTool), ...more };
  let [before, began] = [0, 0];
  for (const { do: verb, method, quiet = false, params = {}, answers: others = {} } of steps) {
    [before, began] = [began, transcript.notifications.length];
    Object.assign(answers, others);
    const entry = { do: verb };
    const progress = [];
    const onprogress = ({ progress: done, total = null, message = null }) => progress.push([done, total, message]);
    try {
      const step =
        verb === "await"
          ? transcript.hears(method, before).then(() => ({}))
          : table[verb](params, quiet ? undefined : onprogress).then((result) => ({ result }));
      Object.assign(entry, await inTime(step));
    } catch (error) {
      if (typeof error.code !== "number") throw error;
      entry.error = refusal(error);
    }
    transcript.steps.push(progress.length ? { ...entry, progress } : entry);
  }
};

// Each script that comes as a line on stdin is played on a connection of its own.
export const serve = async (connectAndPlay) => {
  for await (const line of createInterface({ input: process.stdin })) {
    const transcript = new Transcript();
    await connectAndPlay(JSON.parse(line), transcript);
    await new Promise((resolve) => process.stdout.write(JSON.stringify(transcript) + "\n", resolve));
  }
};
