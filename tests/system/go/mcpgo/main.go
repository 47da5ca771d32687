// The Go SDK mcp-go: `mcpgo play` is a client that plays scripts, `mcpgo ERA TRANSPORT [PORT]` a server of one era over
// `stdio`, Streamable HTTP (`http`) or HTTP+SSE (`sse`).
package main

import (
	"fmt"
	"os"

	"mcproxy.test/system/script"
)

const handshakeVersion = "2025-11-25"

func main() {
	if os.Args[1] == "play" {
		script.Serve(connectAndPlay)
		return
	}
	if err := serve(newMatrix(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
