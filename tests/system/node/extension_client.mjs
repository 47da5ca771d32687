// Uses the extension of extension_server.mjs: `node extension_client.mjs MODE URL`. Prints what it met as JSON.

import { Client, StreamableHTTPClientTransport, fromJsonSchema } from "@modelcontextprotocol/client";

const [mode, url] = process.argv.slice(2);
const ANY = fromJsonSchema({ type: "object" });
const heard = [];
const client = new Client(
  { name: "novel", version: "1" },
  { versionNegotiation: { mode }, capabilities: { extensions: { "io.example/novel": {} } } },
);
client.setRequestHandler("novel/ask", { params: ANY }, ({ what }) => ({ said: `${what}!` }));
client.setNotificationHandler("notifications/novel/step", { params: ANY }, ({ what }) => {
  heard.push(what);
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const offered = Object.keys(client.getServerCapabilities().extensions ?? {});
let result, code;
try {
  if (mode === "legacy") await client.notification({ method: "notifications/novel/poke", params: {} });
  result = await client.request({ method: "novel/do", params: { what: "x" } }, ANY);
} catch (error) {
  code = error.code ?? String(error);
}
process.stdout.write(JSON.stringify({ offered, result, code, heard }));
await client.close();
