package caddytest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// CommandResult is the outcome of a command.
type CommandResult struct {
	Line     string
	Out, Err string
	Code     int
}

// RateLimit runs caddy rate-limit. Without --address it asks c. It runs in this process, because the start of another one costs
// more than most commands, unless the command needs the directory of c, or does not end by itself.
func (c *Caddy) RateLimit(t testing.TB, args ...string) CommandResult {
	t.Helper()
	if slices.ContainsFunc(args, needsProcess) {
		return c.rateLimitProcess(t, args)
	}
	rateLimit := caddycmd.Commands()["rate-limit"]
	sub := &cobra.Command{Use: rateLimit.Name + " " + rateLimit.Usage, Short: rateLimit.Short, Long: rateLimit.Long}
	rateLimit.CobraFunc(sub)
	root := &cobra.Command{Use: "caddy", SilenceUsage: true}
	root.AddCommand(sub)
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	line := []string{"rate-limit"}
	if !slices.Contains(args, "--address") {
		line = append(line, "--address", c.Admin)
	}
	root.SetArgs(append(line, args...))
	code := exitCode(root.Execute())
	return CommandResult{fmt.Sprintf("%q", args), stdout.String(), stderr.String(), code}
}

// needsProcess reports whether a command with an argument runs in a separate process.
func needsProcess(arg string) bool {
	return slices.Contains([]string{"--config", "-c", "--watch", "simulate", "ui"}, arg) || strings.HasPrefix(arg, "@")
}

// exitCode returns the code with which Caddy ends after a command.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct { // Caddy does not export its type
		if code := v.FieldByName("ExitCode"); code.IsValid() {
			return int(code.Int())
		}
	}
	return 1
}

// rateLimitProcess is RateLimit in a separate process.
func (c *Caddy) rateLimitProcess(t testing.TB, args []string) CommandResult {
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
