package caddytest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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

// RateLimit runs caddy rate-limit. Without --address it asks c.
func (c *Caddy) RateLimit(t testing.TB, args ...string) CommandResult {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code, done := RunRateLimit(c.Admin, args, &stdout, &stderr)
	if !done {
		return RunCommand(t, c.Command(append([]string{"rate-limit"}, args...)...))
	}
	return CommandResult{fmt.Sprintf("%q", args), stdout.String(), stderr.String(), code}
}

// RateLimitCommand returns the command caddy rate-limit as Caddy makes it.
func RateLimitCommand() *cobra.Command {
	registered := caddycmd.Commands()["rate-limit"]
	cmd := &cobra.Command{Use: registered.Name + " " + registered.Usage, Short: registered.Short, Long: registered.Long}
	registered.CobraFunc(cmd)
	root := &cobra.Command{Use: "caddy", SilenceUsage: true}
	root.AddCommand(cmd)
	return cmd
}

// RunRateLimit runs caddy rate-limit in this process, because the start of another one costs more than most commands. Without
// --address it asks an admin endpoint. It returns the code with which Caddy would end. If done is false, a separate process
// must run the command.
func RunRateLimit(admin string, args []string, stdout, stderr io.Writer) (code int, done bool) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || slices.ContainsFunc(args, needsProcess) {
		return 0, false
	}
	line := []string{"rate-limit"}
	if !slices.Contains(args, "--address") {
		line = append(line, "--address", admin)
	}
	root := RateLimitCommand().Root()
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(append(line, args...))
	return exitCode(root.Execute()), true
}

// needsProcess reports whether an argument is about the directory, the input or the terminal of the process, or is a command
// that does not end by itself.
func needsProcess(arg string) bool {
	return slices.Contains([]string{"--config", "-c", "-", "simulate", "ui"}, arg) || strings.HasPrefix(arg, "@")
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

// RunCommand runs a command to its end.
func RunCommand(t testing.TB, process *exec.Cmd) CommandResult {
	t.Helper()
	var stdout, stderr bytes.Buffer
	process.Stdout, process.Stderr = &stdout, &stderr
	err := process.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return CommandResult{fmt.Sprintf("%q", process.Args[1:]), stdout.String(), stderr.String(), process.ProcessState.ExitCode()}
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
