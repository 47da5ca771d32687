// The TypeScript SDK's second generation: @modelcontextprotocol/client.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { CAPABILITIES, play, serve } from "./script.mjs";

const open = ({ kind, command, url, env }) => {
  if (kind === "stdio") return new StdioClientTransport({ command: command[0], args: command.slice(1), env });
  if (kind === "sse") return new SSEClientTransport(new URL(url));
  return new StreamableHTTPClientTransport(new URL(url));
};

await serve(async (script, transcript) => {
  const { transport, answers, mode = "legacy" } = script;
  const client = new Client(
    { name: "typescript2", version: "1" },
    { capabilities: CAPABILITIES, versionNegotiation: { mode } },
  );
  for (const method of ["sampling/createMessage", "elicitation/create", "roots/list"]) {
    client.setRequestHandler(method, (request) => {
      transcript.asked(request);
      return answers[method];
    });
  }
  client.fallbackNotificationHandler = async (notification) => transcript.heard(notification);
  await client.connect(open(transport));
  transcript.server = { capabilities: client.getServerCapabilities(), instructions: client.getInstructions() };
  const modern = client.getNegotiatedProtocolVersion() === "2026-07-28";
  const meta = modern ? { _meta: { "io.modelcontextprotocol/logLevel": "info" } } : {};
  const listen = async ({ uris }) => {
    await client.listen({ toolsListChanged: true, resourceSubscriptions: uris });
    return {};
  };
  const callTool = (params, options) => client.callTool({ ...params, ...meta }, options);
  await play(client, script, transcript, callTool, modern ? { listen } : {});
  await client.close();
});
