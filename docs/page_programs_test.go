package docs_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// programs are the shell functions that stand for caddy and sleep. They ask the test, which does itself what it can.
// Then no process is started. Instead of sleeping, the test waits for the state that the page sleeps for.
const programs = `
asked() {
	local output
	exec 9<>/dev/tcp/127.0.0.1/PORT || return 1
	printf '%s\0' "$#" "$@" >&9
	IFS=' ' read -r code output <&9
	exec 9>&-
	[ "$code" != - ] || return 1
	say "$output"
	say "$output.errors" >&2
}
say() {
	local text
	IFS= read -r -d '' text <"$1"
	printf %s "$text"
}
caddy() {
	local code
	if asked caddy "$@"; then return "$code"; fi
	command caddy "$@"
	set -- $? "$@"
	if [ "$2" = reload ]; then asked settle; fi
	return "$1"
}
sleep() {
	local code
	asked settle
}
`

// pagePrograms answers the shells of a page.
type pagePrograms struct {
	t        *testing.T
	listener net.Listener
	dir      string // of the outputs
	outputs  atomic.Int64
	page     *pageRun
}

func servePrograms(t *testing.T, page *pageRun) *pagePrograms {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.None(t, err)
	p := &pagePrograms{t: t, listener: listener, dir: filepath.Join(page.dir, ".outputs"), page: page}
	errtest.None(t, os.Mkdir(p.dir, 0o700))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.answer(conn)
		}
	}()
	return p
}

// functions returns the shell functions. In make real, pages have the real programs.
func (p *pagePrograms) functions() string {
	if caddytest.Real {
		return ""
	}
	_, port, _ := net.SplitHostPort(p.listener.Addr().String())
	return strings.ReplaceAll(programs, "PORT", port)
}

// answer does what a shell asks for. It writes the exit code and the file with the output, or a dash if a process must
// do it.
func (p *pagePrograms) answer(conn net.Conn) {
	defer conn.Close()
	args, err := readArguments(conn)
	if err != nil {
		return
	}
	var output, problems bytes.Buffer
	code, done := p.run(args, &output, &problems)
	if !done {
		_, _ = io.WriteString(conn, "-\n")
		return
	}
	name := filepath.Join(p.dir, strconv.FormatInt(p.outputs.Add(1), 10))
	err = errors.Join(os.WriteFile(name, output.Bytes(), 0o600), os.WriteFile(name+".errors", problems.Bytes(), 0o600))
	errtest.Report(p.t, err)
	_, _ = fmt.Fprintf(conn, "%d %s\n", code, name)
}

// readArguments reads a number, and as many texts, each with a 0 behind it.
func readArguments(conn io.Reader) (args []string, err error) {
	reader := bufio.NewReader(conn)
	next := func() string {
		text, e := reader.ReadString(0)
		err = errors.Join(err, e)
		return strings.TrimSuffix(text, "\x00")
	}
	n, e := strconv.Atoi(next())
	err = errors.Join(err, e)
	for range n {
		args = append(args, next())
	}
	return args, err
}

// run does what a program would do. If done is false, a process must do it.
func (p *pagePrograms) run(args []string, output, problems *bytes.Buffer) (code int, done bool) {
	switch {
	case len(args) == 0:
		return 0, false
	case args[0] == "settle":
		p.page.settle(p.t)
		return 0, true
	case len(args) > 2 && args[0] == "caddy" && args[1] == "rate-limit":
		return caddytest.RunRateLimit("localhost:"+p.page.ports["2019"], args[2:], output, problems)
	}
	return 0, false
}
