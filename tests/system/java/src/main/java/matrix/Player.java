package matrix;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;

import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.McpSyncClient;
import io.modelcontextprotocol.client.transport.HttpClientSseClientTransport;
import io.modelcontextprotocol.client.transport.HttpClientStreamableHttpTransport;
import io.modelcontextprotocol.client.transport.ServerParameters;
import io.modelcontextprotocol.client.transport.StdioClientTransport;
import io.modelcontextprotocol.json.McpJsonDefaults;
import io.modelcontextprotocol.json.McpJsonMapper;
import io.modelcontextprotocol.json.TypeRef;
import io.modelcontextprotocol.spec.McpClientTransport;
import io.modelcontextprotocol.spec.McpError;
import io.modelcontextprotocol.spec.McpSchema;
import reactor.core.Exceptions;
import reactor.core.publisher.Mono;

/** Plays one script after another, each on a connection of its own. */
final class Player {

    private static final McpJsonMapper JSON = McpJsonDefaults.getMapper();

    private static final TypeRef<Map<String, Object>> OBJECT = new TypeRef<>() {
    };

    private static final Duration PATIENCE = Duration.ofSeconds(60); // that any one step may take

    private static final int LARGEST = 1 << 28; // bytes of any one answer

    private final Map<String, Object> script;

    private final Transcript transcript;

    private final McpSyncClient client;

    private Player(Map<String, Object> script) {
        this.script = script;
        this.transcript = new Transcript(object(script.get("answers")));
        McpSchema.ListRootsResult roots = JSON.convertValue(transcript.answer("roots/list"),
                McpSchema.ListRootsResult.class);
        this.client = McpClient.sync(new Tapped(transport(object(script.get("transport"))), transcript))
            .requestTimeout(PATIENCE)
            .initializationTimeout(PATIENCE)
            .clientInfo(read(Map.of("name", "java", "version", "1"), McpSchema.Implementation.class))
            .capabilities(read(Map.of("roots", Map.of("listChanged", true), "sampling", Map.of(), "elicitation",
                    Map.of("form", Map.of(), "url", Map.of())), McpSchema.ClientCapabilities.class))
            .roots(roots.roots())
            .sampling(question -> answer("sampling/createMessage", McpSchema.CreateMessageResult.class))
            .elicitation(question -> answer("elicitation/create", McpSchema.ElicitResult.class))
            .urlElicitation(question -> answer("elicitation/create", McpSchema.ElicitResult.class))
            .build();
    }

    /** Plays each script that comes as a line on stdin, and prints its transcript. */
    static void playAll() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Transcript transcript = new Player(JSON.readValue(line, OBJECT)).play();
            System.out.write(JSON.writeValueAsBytes(transcript.dump()));
            System.out.write('\n');
            System.out.flush();
        }
        System.exit(0); // whatever threads the transports still have
    }

    private static McpClientTransport transport(Map<String, Object> told) {
        URI url = told.containsKey("url") ? URI.create((String) told.get("url")) : null;
        String origin = url == null ? null : url.getScheme() + "://" + url.getAuthority();
        switch ((String) told.get("kind")) {
            case "stdio":
                List<String> command = JSON.convertValue(told.get("command"), new TypeRef<List<String>>() {
                });
                Map<String, String> environment = new HashMap<>(System.getenv());
                object(told.get("env")).forEach((name, value) -> environment.put(name, (String) value));
                ServerParameters server = ServerParameters.builder(command.get(0))
                    .args(command.subList(1, command.size()))
                    .env(environment)
                    .build();
                return new StdioClientTransport(server, JSON, LARGEST);
            case "sse":
                return HttpClientSseClientTransport.builder(origin)
                    .sseEndpoint(url.getPath())
                    .maxResponseSize(LARGEST)
                    .build();
            default:
                return HttpClientStreamableHttpTransport.builder(origin)
                    .endpoint(url.getPath())
                    .openConnectionOnStartup(true)
                    .maxResponseSize(LARGEST)
                    .build();
        }
    }

    private Transcript play() throws Exception {
        transcript.connected(client.initialize());
        int number = 0;
        int began = 0;
        for (Object each : (List<?>) script.get("steps")) {
            Map<String, Object> step = object(each);
            int before = began;
            began = transcript.begin(object(step.get("answers")));
            Map<String, Object> met = new HashMap<>(Map.of("do", step.get("do")));
            try {
                Object result = take(step, number, before);
                if (result != null) {
                    met.put("result", result);
                }
            }
            catch (TimeoutException late) {
                met.put("late", true);
            }
            catch (McpError refused) {
                met.put("error", refused.getJsonRpcError());
            }
            catch (RuntimeException failed) {
                if (!(Exceptions.unwrap(failed).getCause() instanceof TimeoutException)) {
                    throw failed;
                }
                met.put("late", true);
            }
            transcript.end(number++, met);
        }
        client.closeGracefully();
        return transcript;
    }

    private Object take(Map<String, Object> step, int number, int since) throws Exception {
        Map<String, Object> params = new HashMap<>(object(step.get("params")));
        switch ((String) step.get("do")) {
            case "await":
                transcript.hears((String) step.get("method"), since);
                return null;
            case "tools/call":
                if (!Boolean.TRUE.equals(step.get("quiet"))) {
                    params.put("_meta", Map.of("progressToken", number));
                }
                return client.callTool(read(params, McpSchema.CallToolRequest.class));
            case "listen":
                for (Object uri : (List<?>) params.get("uris")) {
                    client.subscribeResource(read(Map.of("uri", uri), McpSchema.SubscribeRequest.class));
                }
                return Map.of();
            case "resources/read":
                return client.readResource(read(params, McpSchema.ReadResourceRequest.class));
            case "resources/subscribe":
                client.subscribeResource(read(params, McpSchema.SubscribeRequest.class));
                return Map.of();
            case "resources/unsubscribe":
                client.unsubscribeResource(read(params, McpSchema.UnsubscribeRequest.class));
                return Map.of();
            case "prompts/get":
                return client.getPrompt(read(params, McpSchema.GetPromptRequest.class));
            case "completion/complete":
                return client.completeCompletion(read(params, McpSchema.CompleteRequest.class));
            case "logging/setLevel":
                client.setLoggingLevel(read(params.get("level"), McpSchema.LoggingLevel.class));
                return Map.of();
            case "ping":
                return client.ping();
            case "tools/list":
                return drained("tools", client::listTools, McpSchema.ListToolsResult::tools,
                        McpSchema.ListToolsResult::nextCursor);
            case "resources/list":
                return drained("resources", client::listResources, McpSchema.ListResourcesResult::resources,
                        McpSchema.ListResourcesResult::nextCursor);
            case "resources/templates/list":
                return drained("resourceTemplates", client::listResourceTemplates,
                        McpSchema.ListResourceTemplatesResult::resourceTemplates,
                        McpSchema.ListResourceTemplatesResult::nextCursor);
            case "prompts/list":
                return drained("prompts", client::listPrompts, McpSchema.ListPromptsResult::prompts,
                        McpSchema.ListPromptsResult::nextCursor);
            default:
                throw new IllegalArgumentException("no verb " + step.get("do"));
        }
    }

    private <P, E> Map<String, Object> drained(String member, Function<String, P> fetch, Function<P, List<E>> entries,
            Function<P, String> next) {
        List<E> all = new ArrayList<>();
        String cursor = null;
        do {
            P page = fetch.apply(cursor);
            all.addAll(entries.apply(page));
            cursor = next.apply(page);
        }
        while (cursor != null);
        return Map.of(member, all);
    }

    private <T> T answer(String method, Class<T> type) {
        return read(transcript.answer(method), type);
    }

    static <T> T read(Object value, Class<T> type) {
        return JSON.convertValue(value, type);
    }

    private static Map<String, Object> object(Object value) {
        return value == null ? Map.of() : JSON.convertValue(value, OBJECT);
    }

    /** A transport whose transcript has what comes, before the SDK takes it. */
    private record Tapped(McpClientTransport inner, Transcript transcript) implements McpClientTransport {

        @Override
        public Mono<Void> connect(Function<Mono<McpSchema.JSONRPCMessage>, Mono<McpSchema.JSONRPCMessage>> handler) {
            return inner.connect(messages -> handler.apply(messages.doOnNext(this::note)));
        }

        private void note(McpSchema.JSONRPCMessage message) {
            if (message instanceof McpSchema.JSONRPCNotification told) {
                transcript.heard(told.method(), told.params() == null ? null : object(told.params()));
            }
            else if (message instanceof McpSchema.JSONRPCRequest asked && !asked.method().equals("ping")) {
                transcript.asked(asked.method(), asked.params());
            }
        }

        @Override
        public Mono<Void> sendMessage(McpSchema.JSONRPCMessage message) {
            return inner.sendMessage(message);
        }

        @Override
        public Mono<Void> closeGracefully() {
            return inner.closeGracefully();
        }

        @Override
        public <T> T unmarshalFrom(Object data, TypeRef<T> type) {
            return inner.unmarshalFrom(data, type);
        }

        @Override
        public List<String> protocolVersions() {
            return inner.protocolVersions();
        }

        @Override
        public void setExceptionHandler(Consumer<Throwable> handler) {
            inner.setExceptionHandler(handler);
        }

    }

}
