// The TypeScript SDK's second generation as a server of an extension that nobody else knows, over stdio and in one era:
// `node extension_server.mjs ERA`. What a client does is told to it on the way; in the handshake era it is asked too.

import { Server, fromJsonSchema } from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";

const [era] = process.argv.slice(2);
const ANY = fromJsonSchema({ type: "object" });
let pokes = 0;

const create = () => {
  const server = new Server({ name: "novel", version: "1" }, { capabilities: { extensions: { "io.example/novel": {} } } });
  server.setNotificationHandler("notifications/novel/poke", { params: ANY }, () => {
    pokes += 1;
  });
  server.setRequestHandler("novel/do", { params: ANY }, async ({ what }, { mcpReq }) => {
    await mcpReq.notify({ method: "notifications/novel/step", params: { what } });
    const answer = era === "legacy" ? await mcpReq.send({ method: "novel/ask", params: { what } }, ANY) : {};
    return { did: what, answer, pokes };
  });
  return server;
};

if (era === "legacy") {
  await create().connect(new StdioServerTransport());
} else {
  serveStdio(create, { legacy: "reject" });
}
