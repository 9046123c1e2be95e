//go:build linux

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/logtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// simulateEndlessLog starts the command with a log of 4000 requests in its standard input, which doesn't end.
// It returns when nearly all of the log is read. A command that hangs is killed.
func simulateEndlessLog(t *testing.T, process *exec.Cmd) {
	t.Helper()
	stdin, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	hang := time.AfterFunc(caddytest.Patient, func() { _ = process.Process.Kill() }) // a bound, which only a failure reaches
	t.Cleanup(func() {
		hang.Stop()
		_ = stdin.Close()
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	if err := logtest.Write(stdin, logtest.Options{Requests: 4000, Clients: 10}); err != nil {
		t.Fatal(err)
	}
}

// After a signal, the report is about the requests so far, and says that it is interrupted.
func TestSimulateInterrupted(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		process := simulateIn(simulationDirectory(t), "--json", "-")
		var stdout, stderr bytes.Buffer
		process.Stdout, process.Stderr = &stdout, &stderr
		simulateEndlessLog(t, process)
		if err := process.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = process.Wait()
		if code := process.ProcessState.ExitCode(); code != 130 || !strings.HasPrefix(stderr.String(), "Interrupted: ") {
			t.Errorf("%v: exit code %d, %q", signal, code, stderr.String())
		}
		r := decodes[report.Report](t, caddytest.CommandResult{Out: stdout.String()})
		if n := r.Log.Requests; !r.Interrupted || n == 0 || n > 4000 || r.Configurations[0].Requests != n {
			t.Errorf("%v: %t, %d requests, of which %d are decided", signal, r.Interrupted, n, r.Configurations[0].Requests)
		}
	}
}

// A second signal ends the command at once: here while nobody reads the report. A command that a script has started
// ignores signals until it listens to them.
func TestSimulateInterruptedTwice(t *testing.T) {
	t.Parallel()
	for _, isIgnored := range []bool{false, true} {
		state := interruptTwice(t, isIgnored)
		if status := state.Sys().(syscall.WaitStatus); isIgnored && state.ExitCode() != 130 || !isIgnored && status.Signal() != syscall.SIGINT {
			t.Errorf("ignored %t: it ends with %v", isIgnored, state)
		}
	}
}

// interruptTwice returns how the command ends after two signals.
func interruptTwice(t *testing.T, isIgnored bool) *os.ProcessState {
	t.Helper()
	dir := simulationDirectory(t)
	unread := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(unread, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(unread, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	const setPipeSize = 1031 // F_SETPIPE_SZ
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, pipe.Fd(), setPipeSize, 4096); errno != 0 {
		t.Fatal(errno)
	}
	process := simulateIn(dir, "--json", "--output", unread, "-")
	var stderr caddytest.Output
	process.Stderr = &stderr
	if isIgnored {
		process.Path, process.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" INT; exec "$0" "$@"`}, process.Args...)
	}
	simulateEndlessLog(t, process)
	if err := process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	caddytest.EventuallySees(t, "it notices the first signal", stderr.String, func(said string) bool { return strings.Contains(said, "Another Ctrl-C") })
	if err := process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	return process.ProcessState
}

// A command that is killed leaves no file behind.
func TestSimulateKilled(t *testing.T) {
	t.Parallel()
	dir := simulationDirectory(t)
	process := simulateIn(dir, "--output", "report", "-")
	simulateEndlessLog(t, process)
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	if left, _ := filepath.Glob(filepath.Join(dir, "report*")); len(left) > 0 {
		t.Errorf("these files are left: %q", left)
	}
}

// A bar on the terminal shows the rate and the time left. It disappears at the end, and isn't part of the
// report.
func TestSimulateProgress(t *testing.T) {
	t.Parallel()
	dir := simulationDirectory(t)
	outer, inner := openTerminal(t)
	process := simulateIn(dir, "--json", "access.log")
	process.Env = append(process.Env, "TERM=xterm")
	var stdout bytes.Buffer
	process.Stdout, process.Stderr = &stdout, inner
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	_ = inner.Close()
	var screen caddytest.Output
	buffer := make([]byte, 4096)
	for {
		n, err := outer.Read(buffer)
		_, _ = screen.Write(buffer[:n])
		if err != nil { // the process has ended
			break
		}
	}
	if err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	shown := screen.String()
	if !strings.Contains(shown, "200 lines, ") || !strings.Contains(shown, "/s, ") || !strings.Contains(shown, " left") {
		t.Errorf("the terminal shows %q", shown)
	}
	lines := strings.Split(strings.TrimRight(shown, "\r\n"), "\r")
	if last := lines[len(lines)-1]; strings.TrimSpace(last) != "" {
		t.Errorf("the terminal shows %q in the end", last)
	}
	decodes[report.Report](t, caddytest.CommandResult{Out: stdout.String()})
}
