package matrix;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;

import io.modelcontextprotocol.json.McpJsonDefaults;
import io.modelcontextprotocol.server.McpServer;
import io.modelcontextprotocol.server.McpServerFeatures.SyncResourceSpecification;
import io.modelcontextprotocol.server.McpServerFeatures.SyncToolSpecification;
import io.modelcontextprotocol.server.McpSyncServer;
import io.modelcontextprotocol.server.McpSyncServerExchange;
import io.modelcontextprotocol.server.transport.HttpServletSseServerTransportProvider;
import io.modelcontextprotocol.server.transport.HttpServletStreamableServerTransportProvider;
import io.modelcontextprotocol.server.transport.StdioServerTransportProvider;
import io.modelcontextprotocol.spec.McpError;
import io.modelcontextprotocol.spec.McpSchema;
import io.modelcontextprotocol.spec.McpSchema.CallToolRequest;
import io.modelcontextprotocol.spec.McpSchema.CallToolResult;
import jakarta.servlet.Servlet;
import org.apache.catalina.Context;
import org.apache.catalina.Wrapper;
import org.apache.catalina.startup.Tomcat;

/**
 * One server for all its clients. Its tools are those of tests/system/matrix_server.py, but for {@code wait} and
 * {@code given_up}: the SDK knows no cancellation.
 */
final class Matrix {

    private static final String MEMO = "matrix://memo";

    private static final long PAUSE = 200; // milliseconds: some clients lose progress read together with the answer

    private static final List<String> TOOLS = List.of("add", "report", "log", "fail", "refuse", "large", "elicit",
            "sample", "roots", "touch", "grow");

    private final McpSyncServer server;

    private int grown;

    private Matrix(McpServer.SyncSpecification<?> specification) {
        this.server = specification.serverInfo("matrix", "1")
            .capabilities(Player.read(
                    Map.of("tools", Map.of("listChanged", true), "resources", Map.of("subscribe", true), "logging", Map.of()),
                    McpSchema.ServerCapabilities.class))
            .tools(TOOLS.stream().map(name -> tool(name, (exchange, request) -> call(name, exchange, request))).toList())
            .resources(new SyncResourceSpecification(
                    Player.read(Map.of("uri", MEMO, "name", "memo"), McpSchema.Resource.class),
                    (exchange, request) -> Player.read(
                            Map.of("contents", List.of(Map.of("uri", MEMO, "text", "hello"))),
                            McpSchema.ReadResourceResult.class)))
            .build();
    }

    static void serveStdio() {
        new Matrix(McpServer.sync(new StdioServerTransportProvider(McpJsonDefaults.getMapper())));
    }

    static void serveHttp(String transport, int port) throws Exception {
        Servlet servlet;
        if (transport.equals("sse")) {
            var provider = HttpServletSseServerTransportProvider.builder().messageEndpoint("/message").build();
            new Matrix(McpServer.sync(provider));
            servlet = provider;
        }
        else {
            var provider = HttpServletStreamableServerTransportProvider.builder().mcpEndpoint("/mcp").build();
            new Matrix(McpServer.sync(provider));
            servlet = provider;
        }
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(System.getProperty("java.io.tmpdir"));
        tomcat.setPort(port);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        Context context = tomcat.addContext("", null);
        Wrapper wrapper = Tomcat.addServlet(context, "mcp", servlet);
        wrapper.setAsyncSupported(true);
        context.addServletMappingDecoded("/*", "mcp");
        tomcat.start();
        tomcat.getServer().await();
    }

    private static SyncToolSpecification tool(String name,
            BiFunction<McpSyncServerExchange, CallToolRequest, CallToolResult> call) {
        Map<String, Object> described = Map.of("name", name, "inputSchema", Map.of("type", "object"));
        return new SyncToolSpecification(Player.read(described, McpSchema.Tool.class), call);
    }

    private CallToolResult call(String name, McpSyncServerExchange exchange, CallToolRequest request) {
        Map<String, Object> given = request.arguments();
        switch (name) {
            case "add":
                return add(exchange, request);
            case "report":
                report(exchange, request);
                break;
            case "log":
                for (String level : List.of("info", "warning", "error")) {
                    exchange.loggingNotification(Player.read(
                            Map.of("level", level, "logger", "matrix", "data", given.get("who") + ": " + level),
                            McpSchema.LoggingMessageNotification.class));
                }
                break;
            case "fail":
                return result("it did not work", true);
            case "refuse":
                throw McpError.builder(-31999).message("no, and this is why").data(Map.of("kept", List.of(1))).build();
            case "large":
                return result("x".repeat((Integer) given.get("size")), false);
            case "elicit":
                Map<String, Object> form = Map.of("type", "object", "properties",
                        Map.of("name", Map.of("type", "string")), "required", List.of("name"));
                return said(exchange.createElicitation(McpSchema.ElicitRequest.builder("Who are you?", form).build()));
            case "sample":
                Map<String, Object> message = Map.of("role", "user", "content",
                        Map.of("type", "text", "text", "how are you?"));
                return said(exchange.createMessage(Player.read(Map.of("maxTokens", 7, "messages", List.of(message)),
                        McpSchema.CreateMessageRequest.class)));
            case "roots":
                return said(exchange.listRoots());
            case "touch":
                server.notifyResourcesUpdated(
                        Player.read(Map.of("uri", MEMO), McpSchema.ResourcesUpdatedNotification.class));
                break;
            default:
                synchronized (this) {
                    grown++;
                    server.addTool(tool("grown_" + grown, Matrix::add));
                }
        }
        return result(name + ": done", false);
    }

    private static CallToolResult add(McpSyncServerExchange exchange, CallToolRequest request) {
        int sum = (Integer) request.arguments().get("a") + (Integer) request.arguments().get("b");
        return result(String.valueOf(sum), false);
    }

    private static void report(McpSyncServerExchange exchange, CallToolRequest request) {
        Object token = request.meta() == null ? null : request.meta().get("progressToken");
        for (int done = 1; done <= 3; done++) {
            Map<String, Object> progress = new HashMap<>(Map.of("progress", done, "total", 3));
            progress.put("progressToken", token);
            exchange.progressNotification(Player.read(progress, McpSchema.ProgressNotification.class));
        }
        try {
            Thread.sleep(PAUSE);
        }
        catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static CallToolResult said(Object answer) {
        try {
            return result(McpJsonDefaults.getMapper().writeValueAsString(answer), false);
        }
        catch (java.io.IOException unwritable) {
            throw new java.io.UncheckedIOException(unwritable);
        }
    }

    private static CallToolResult result(String text, boolean failed) {
        return Player.read(Map.of("content", List.of(Map.of("type", "text", "text", text)), "isError", failed),
                CallToolResult.class);
    }

}
