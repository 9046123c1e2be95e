package caddytest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CommandResult is the outcome of a command.
type CommandResult struct {
	Line     string
	Out, Err string
	Code     int
}

// RateLimit runs caddy rate-limit. Without --address it asks c.
func (c *Caddy) RateLimit(t testing.TB, args ...string) CommandResult {
	t.Helper()
	process := c.Command(append([]string{"rate-limit"}, args...)...)
	var stdout, stderr bytes.Buffer
	process.Stdout, process.Stderr = &stdout, &stderr
	err := process.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return CommandResult{fmt.Sprintf("%q", args), stdout.String(), stderr.String(), process.ProcessState.ExitCode()}
}

// Command returns a command of Caddy, for which c is the default.
func (c *Caddy) Command(args ...string) *exec.Cmd {
	process := exec.Command(program(), args...)
	process.Env = append(append(os.Environ(), beCaddy+"=1", "CADDY_ADMIN="+c.Admin, "GORACE=atexit_sleep_ms=10"), c.Env...)
	process.Dir = filepath.Dir(c.File)
	return process
}

// Succeeds checks that the command had no error, and printed these texts.
func (r CommandResult) Succeeds(t testing.TB, texts ...string) CommandResult {
	t.Helper()
	if r.Code != 0 || r.Err != "" {
		t.Errorf("%s: exit code %d, %s", r.Line, r.Code, r.Err)
	}
	for _, text := range texts {
		if !strings.Contains(r.Out, text) {
			t.Errorf("%s: it prints\n%s\nwithout %q", r.Line, r.Out, text)
		}
	}
	return r
}

// Fails checks the exit code, and that the error has these texts.
func (r CommandResult) Fails(t testing.TB, code int, texts ...string) CommandResult {
	t.Helper()
	if r.Code != code {
		t.Errorf("%s: exit code %d, want %d: %s%s", r.Line, r.Code, code, r.Out, r.Err)
	}
	for _, text := range texts {
		if !strings.Contains(r.Err, text) {
			t.Errorf("%s: the error is\n%s\nwithout %q", r.Line, r.Err, text)
		}
	}
	return r
}
