package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"mcproxy.test/system/script"
)

const memo = "matrix://memo"

// A matrix is one server for all its clients. Its tools are those of tests/system/matrix_server.py.
type matrix struct {
	server *server.MCPServer

	mutex   sync.Mutex
	grown   int
	givenUp chan struct{} // closed when the last call of `wait` was given up
}

func newMatrix() *matrix {
	m := &matrix{server: server.NewMCPServer("matrix", "1",
		server.WithToolCapabilities(true), server.WithResourceCapabilities(true, false), server.WithLogging(),
		server.WithElicitation(), server.WithRoots(),
	)}
	m.server.EnableSampling()
	form := json.RawMessage(`{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}`)
	question := mcp.CreateMessageParams{MaxTokens: 7, Messages: []mcp.SamplingMessage{
		{Role: mcp.RoleUser, Content: mcp.NewTextContent("how are you?")},
	}}
	for name, call := range map[string]server.ToolHandlerFunc{
		"add":      add,
		"report":   m.report,
		"wait":     m.wait,
		"given_up": m.awaitGivenUp,
		"log":      m.log,
		"fail":     fail,
		"refuse":   refuse,
		"large":    large,
		"touch":    m.touch,
		"grow":     m.grow,
		"elicit":   asking(mcp.NewElicitationInputRequest(mcp.ElicitationParams{Message: "Who are you?", RequestedSchema: form})),
		"sample":   asking(mcp.NewSamplingInputRequest(question)),
		"roots":    asking(mcp.NewRootsInputRequest()),
	} {
		m.offer(name, call)
	}
	m.server.AddResource(mcp.NewResource(memo, "memo"),
		func(context.Context, mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
			return []mcp.ResourceContents{mcp.TextResourceContents{URI: memo, Text: "hello"}}, nil
		})
	return m
}

func (m *matrix) offer(name string, call server.ToolHandlerFunc) {
	m.server.AddTool(mcp.NewToolWithRawSchema(name, "", json.RawMessage(`{"type": "object"}`)), call)
}

func text(format string, values ...any) (*mcp.CallToolResult, error) {
	return mcp.NewToolResultText(fmt.Sprintf(format, values...)), nil
}

func add(_ context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return text("%d", request.GetInt("a", 0)+request.GetInt("b", 0))
}

func fail(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return mcp.NewToolResultError("it did not work"), nil
}

// refuse returns what the SDK makes an internal error of: it lets a tool choose no code and no data.
func refuse(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return nil, errors.New("no, and this is why")
}

func large(_ context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return text("%s", strings.Repeat("x", request.GetInt("size", 0)))
}

// asking is a tool that answers with what the client says to one question; the SDK asks it in either era's way.
func asking(question mcp.InputRequest) server.ToolHandlerFunc {
	return func(_ context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		answer, answered := request.Params.InputResponses["answer"]
		if !answered {
			return &mcp.CallToolResult{
				Result:               mcp.Result{ResultType: mcp.ResultTypeInputRequired},
				MultiRoundTripResult: mcp.MultiRoundTripResult{InputRequests: mcp.InputRequests{"answer": question}},
			}, nil
		}
		encoded, err := json.Marshal(answer)
		if err != nil {
			return nil, err
		}
		return text("%s", encoded)
	}
}

func (m *matrix) tell(ctx context.Context, request mcp.CallToolRequest, progress map[string]any) error {
	if request.Params.Meta == nil || request.Params.Meta.ProgressToken == nil {
		return nil
	}
	progress["progressToken"] = request.Params.Meta.ProgressToken
	return m.server.SendNotificationToClient(ctx, "notifications/progress", progress)
}

func (m *matrix) report(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for done := range 3 {
		if err := m.tell(ctx, request, map[string]any{"progress": done + 1, "total": 3}); err != nil {
			return nil, err
		}
	}
	time.Sleep(script.Pause)
	return text("report: done")
}

func (m *matrix) wait(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	m.mutex.Lock()
	givenUp := make(chan struct{})
	m.givenUp = givenUp
	m.mutex.Unlock()
	defer close(givenUp)
	if err := m.tell(ctx, request, map[string]any{"progress": 0}); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (m *matrix) awaitGivenUp(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	m.mutex.Lock()
	givenUp := m.givenUp
	m.mutex.Unlock()
	select {
	case <-givenUp:
		return text("given_up: done")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *matrix) log(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for _, level := range []mcp.LoggingLevel{"info", "warning", "error"} {
		line := fmt.Sprintf("%s: %s", request.GetString("who", ""), level)
		if err := m.server.SendLogMessageToClient(ctx, mcp.NewLoggingMessageNotification(level, "matrix", line)); err != nil {
			return nil, err
		}
	}
	time.Sleep(script.Pause) // the SDK sends messages beside the answer, and none after it
	return text("log: done")
}

func (m *matrix) touch(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	m.server.SendNotificationToAllClients(mcp.MethodNotificationResourceUpdated, map[string]any{"uri": memo})
	return text("touch: done")
}

func (m *matrix) grow(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	m.mutex.Lock()
	m.grown++
	name := fmt.Sprintf("grown_%d", m.grown)
	m.mutex.Unlock()
	m.offer(name, add)
	return text("grow: done")
}

// serve answers in either era, as the client has it. Over Streamable HTTP a handshake opens a session.
func serve(m *matrix, arguments []string) error {
	switch {
	case arguments[1] == "stdio":
		return server.ServeStdio(m.server)
	case arguments[1] == "sse":
		address := "127.0.0.1:" + arguments[2]
		return server.NewSSEServer(m.server, server.WithBaseURL("http://"+address)).Start(address)
	default:
		handler := server.NewStreamableHTTPServer(m.server, server.WithStateful(arguments[0] == "legacy"))
		return http.ListenAndServe("127.0.0.1:"+arguments[2], handler)
	}
}
