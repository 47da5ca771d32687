// The TypeScript SDK's second generation as a server of one era: `node matrix_server.mjs ERA [PORT]`, over HTTP with a
// port and over stdio without. Its tools are those of tests/system/matrix_server.py.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { setTimeout } from "node:timers/promises";
import { NodeStreamableHTTPServerTransport, toNodeHandler } from "@modelcontextprotocol/node";
import { ProtocolError, Server, createMcpHandler, inputRequired } from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";

const [era, port] = process.argv.slice(2);
const MEMO = "matrix://memo";
const PAUSE = 200; // milliseconds: some clients lose progress that they read together with the answer
const LEVELS = ["info", "warning", "error"];
const NAMES = [
  ..."add report wait given_up log fail refuse large".split(" "),
  ..."elicit sample roots touch grow".split(" "),
];
const FORM = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
const QUESTIONS = {
  elicit: inputRequired.elicit({ message: "Who are you?", requestedSchema: FORM }),
  sample: inputRequired.createMessage({
    messages: [{ role: "user", content: { type: "text", text: "how are you?" } }],
    maxTokens: 7,
  }),
  roots: inputRequired.listRoots(),
};

const tools = NAMES.map((name) => ({ name, inputSchema: { type: "object" } }));
let givenUp;
let notifier; // where a handler makes a server for each request, it tells of changes itself

const text = (value) => ({ content: [{ type: "text", text: value }] });

const wait = ({ signal }) => {
  let resolve;
  givenUp = new Promise((done) => (resolve = done));
  return new Promise((_, reject) =>
    signal.addEventListener("abort", () => {
      resolve();
      reject(signal.reason);
    }),
  );
};

const call = async (server, { name, arguments: given = {} }, { mcpReq }) => {
  const report = (progress, total) => {
    const progressToken = mcpReq._meta?.progressToken;
    return mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, total } });
  };
  switch (name) {
    case "add":
      return text(`${given.a + given.b}`);
    case "report":
      for (const done of [1, 2, 3]) await report(done, 3);
      await setTimeout(PAUSE);
      break;
    case "wait":
      await report(0);
      return wait(mcpReq);
    case "given_up":
      await givenUp;
      break;
    case "log":
      for (const level of LEVELS) await mcpReq.log(level, `${given.who}: ${level}`, "matrix");
      break;
    case "fail":
      return { ...text("it did not work"), isError: true };
    case "refuse":
      throw new ProtocolError(-31999, "no, and this is why", { kept: [1] });
    case "large":
      return text("x".repeat(given.size));
    case "elicit":
    case "sample":
    case "roots": {
      const answer = mcpReq.inputResponses?.answer;
      if (answer === undefined) return inputRequired({ inputRequests: { answer: QUESTIONS[name] } });
      return text(JSON.stringify(answer));
    }
    case "touch":
      await (notifier ? notifier.resourceUpdated(MEMO) : server.sendResourceUpdated({ uri: MEMO }));
      break;
    case "grow":
      tools.push({ name: `grown_${tools.length}`, inputSchema: { type: "object" } });
      await (notifier ? notifier.toolsChanged() : server.sendToolListChanged());
      break;
  }
  return text(`${name}: done`);
};

const create = () => {
  const capabilities = { tools: { listChanged: true }, resources: { subscribe: true }, logging: {} };
  const server = new Server({ name: "matrix", version: "1" }, { capabilities });
  server.setRequestHandler("tools/list", () => ({ tools }));
  server.setRequestHandler("tools/call", (request, context) => call(server, request.params, context));
  server.setRequestHandler("resources/list", () => ({ resources: [{ uri: MEMO, name: "memo" }] }));
  server.setRequestHandler("resources/read", () => ({ contents: [{ uri: MEMO, text: "hello" }] }));
  if (era === "legacy") {
    server.setRequestHandler("resources/subscribe", () => ({}));
    server.setRequestHandler("resources/unsubscribe", () => ({}));
  }
  return server;
};

// Streamable HTTP with a session for each client.
const sessions = () => {
  const transports = new Map();
  const open = async () => {
    const transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => transports.set(id, transport),
    });
    await create().connect(transport);
    return transport;
  };
  return async (request, response) => {
    const transport = transports.get(request.headers["mcp-session-id"]) ?? (await open());
    await transport.handleRequest(request, response);
  };
};

const stateless = () => {
  const handler = createMcpHandler(create, { legacy: "reject" });
  notifier = handler.notify;
  return toNodeHandler(handler);
};

if (port !== undefined) {
  createServer(era === "legacy" ? sessions() : stateless()).listen(Number(port), "127.0.0.1");
} else if (era === "legacy") {
  await create().connect(new StdioServerTransport());
} else {
  serveStdio(create, { legacy: "reject" });
}
