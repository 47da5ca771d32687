// The official Go SDK: `official play` is a client that plays scripts, `official ERA [PORT]` a server of one era, over
// HTTP with a port and over stdio without.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcproxy.test/system/script"
)

const (
	handshakeVersion = "2025-11-25"
	statelessVersion = "2026-07-28"
)

var versions = map[string]string{"legacy": handshakeVersion, "modern": statelessVersion}

func main() {
	if os.Args[1] == "play" {
		script.Serve(connectAndPlay)
		return
	}
	era := os.Args[1]
	m := newMatrix(versions[era])
	var err error
	if len(os.Args) > 2 {
		err = serveHTTP(m, era, os.Args[2])
	} else {
		err = m.server.Run(context.Background(), &mcp.StdioTransport{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
