package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcproxy.test/system/script"
)

const memo = "matrix://memo"

// A matrix is one server for all its clients. Its tools are those of tests/system/matrix_server.py.
type matrix struct {
	server *mcp.Server

	mutex   sync.Mutex
	grown   int
	givenUp chan struct{} // closed when the last call of `wait` was given up
}

type arguments struct {
	A, B, Size int
	Who        string
}

type tool func(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error)

func newMatrix(versions ...string) *matrix {
	accept := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	m := &matrix{server: mcp.NewServer(&mcp.Implementation{Name: "matrix", Version: "1"}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{
			Logging:   &mcp.LoggingCapabilities{},
			Tools:     &mcp.ToolCapabilities{ListChanged: true},
			Resources: &mcp.ResourceCapabilities{Subscribe: true},
		},
		SubscribeHandler:          accept,
		UnsubscribeHandler:        func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		SupportedProtocolVersions: versions,
	})}
	form := map[string]any{
		"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}, "required": []string{"name"},
	}
	for name, call := range map[string]tool{
		"add":      m.add,
		"report":   m.report,
		"wait":     m.wait,
		"given_up": m.awaitGivenUp,
		"log":      m.log,
		"fail":     m.fail,
		"refuse":   m.refuse,
		"large":    m.large,
		"touch":    m.touch,
		"grow":     m.grow,
		"elicit":   asking(&mcp.ElicitParams{Message: "Who are you?", RequestedSchema: form}),
		"sample": asking(&mcp.CreateMessageParams{MaxTokens: 7, Messages: []*mcp.SamplingMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "how are you?"}},
		}}),
		"roots": asking(&mcp.ListRootsParams{}),
	} {
		m.offer(name, call)
	}
	m.server.AddResource(&mcp.Resource{URI: memo, Name: "memo"},
		func(_ context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: memo, Text: "hello"}}}, nil
		})
	return m
}

func (m *matrix) offer(name string, call tool) {
	described := &mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}
	m.server.AddTool(described, func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var given arguments
		if err := json.Unmarshal(request.Params.Arguments, &given); err != nil {
			return nil, err
		}
		return call(ctx, request, given)
	})
}

func text(format string, values ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, values...)}}}
}

func (m *matrix) add(_ context.Context, _ *mcp.CallToolRequest, given arguments) (*mcp.CallToolResult, error) {
	return text("%d", given.A+given.B), nil
}

func tell(ctx context.Context, request *mcp.CallToolRequest, progress, total float64) error {
	params := &mcp.ProgressNotificationParams{
		ProgressToken: request.Params.GetProgressToken(), Progress: progress, Total: total,
	}
	return request.Session.NotifyProgress(ctx, params)
}

func (m *matrix) report(ctx context.Context, request *mcp.CallToolRequest, _ arguments) (*mcp.CallToolResult, error) {
	for _, done := range []float64{1, 2, 3} {
		if err := tell(ctx, request, done, 3); err != nil {
			return nil, err
		}
	}
	time.Sleep(script.Pause)
	return text("report: done"), nil
}

func (m *matrix) wait(ctx context.Context, request *mcp.CallToolRequest, _ arguments) (*mcp.CallToolResult, error) {
	m.mutex.Lock()
	givenUp := make(chan struct{})
	m.givenUp = givenUp
	m.mutex.Unlock()
	defer close(givenUp)
	if err := tell(ctx, request, 0, 0); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (m *matrix) awaitGivenUp(ctx context.Context, _ *mcp.CallToolRequest, _ arguments) (*mcp.CallToolResult, error) {
	m.mutex.Lock()
	givenUp := m.givenUp
	m.mutex.Unlock()
	select {
	case <-givenUp:
		return text("given_up: done"), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *matrix) log(ctx context.Context, request *mcp.CallToolRequest, given arguments) (*mcp.CallToolResult, error) {
	for _, level := range []mcp.LoggingLevel{"info", "warning", "error"} {
		data, err := json.Marshal(fmt.Sprintf("%s: %s", given.Who, level))
		if err != nil {
			return nil, err
		}
		message := &mcp.LoggingMessageParams{Level: level, Logger: "matrix", Data: json.RawMessage(data)}
		if err := request.Session.Log(ctx, message); err != nil {
			return nil, err
		}
	}
	return text("log: done"), nil
}

func (m *matrix) fail(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error) {
	failure := text("it did not work")
	failure.IsError = true
	return failure, nil
}

func (m *matrix) refuse(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error) {
	return nil, &jsonrpc.Error{Code: -31999, Message: "no, and this is why", Data: json.RawMessage(`{"kept":[1]}`)}
}

func (m *matrix) large(_ context.Context, _ *mcp.CallToolRequest, given arguments) (*mcp.CallToolResult, error) {
	return text("%s", strings.Repeat("x", given.Size)), nil
}

// asking is a tool that answers with what the client says to one question; the SDK asks it in either era's way.
func asking(question mcp.InputRequest) tool {
	return func(_ context.Context, request *mcp.CallToolRequest, _ arguments) (*mcp.CallToolResult, error) {
		answer, answered := request.Params.InputResponses["answer"]
		if !answered {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"answer": question}}, nil
		}
		encoded, err := json.Marshal(answer)
		return text("%s", encoded), err
	}
}

func (m *matrix) touch(ctx context.Context, _ *mcp.CallToolRequest, _ arguments) (*mcp.CallToolResult, error) {
	return text("touch: done"), m.server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: memo})
}

func (m *matrix) grow(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error) {
	m.mutex.Lock()
	m.grown++
	name := fmt.Sprintf("grown_%d", m.grown)
	m.mutex.Unlock()
	m.offer(name, m.add)
	return text("grow: done"), nil
}

func serveHTTP(m *matrix, era, port string) error {
	handler := mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return m.server },
		&mcp.StreamableHTTPOptions{Stateless: era == "modern", PropagateRequestCancellation: true},
	)
	return http.ListenAndServe("127.0.0.1:"+port, handler)
}
