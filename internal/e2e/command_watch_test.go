//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// openTerminal returns the two ends of a terminal: keyboard and screen, and what a process gets.
func openTerminal(t *testing.T) (outer, inner *os.File) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	control := func(request uintptr, value unsafe.Pointer) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, outer.Fd(), request, uintptr(value)); errno != 0 {
			t.Fatal(errno)
		}
	}
	var locked, number int32
	control(syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	control(syscall.TIOCGPTN, unsafe.Pointer(&number))
	size := [4]uint16{24, 80} // rows and columns
	control(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	if inner, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	return outer, inner
}

// On a terminal each output replaces the one before. Ctrl-C ends the command, restores the terminal,
// and leaves the last output.
func TestCommandWatchOnTerminal(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, commandSite(""))
	outer, inner := openTerminal(t)
	process := c.Command("rate-limit", "top", "--watch")
	process.Env = append(process.Env, "TERM=xterm")
	process.Stdin, process.Stdout, process.Stderr = inner, inner, inner
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that Ctrl-C reaches it
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	_ = inner.Close()
	var screen caddytest.Output
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		buffer := make([]byte, 4096)
		for {
			n, err := outer.Read(buffer)
			_, _ = screen.Write(buffer[:n])
			if err != nil { // the process has ended
				return
			}
		}
	}()
	shows := func(text string) func(string) bool {
		return func(shown string) bool { return strings.Contains(shown, text) }
	}
	caddytest.EventuallySees(t, "an output is shown", screen.String, shows("No key was denied lately."))
	for range 3 {
		c.Get(t, "/", "Key", "customer-7")
	}
	caddytest.EventuallySees(t, "a denied key is shown", screen.String, shows("customer-7\x1b[K"))
	if _, err := outer.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if err := process.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	<-closed
	shown := screen.String()
	if !strings.Contains(shown, "\x1b[?1049h\x1b[?25l") || strings.Count(shown, "\x1b[H") < 2 || !strings.Contains(shown, "\x1b[2mZONE\x1b[0m") {
		t.Errorf("no screen with colors in %q", shown)
	}
	_, left, ok := strings.Cut(shown, "\x1b[?7h\x1b[?25h\x1b[?1049l")
	if !ok || !strings.HasSuffix(left, "customer-7\r\n") {
		t.Errorf("on the terminal is left %q", left)
	}
}

// In a pipe, outputs follow each other without colors, and a signal ends the command.
func TestCommandWatchInPipe(t *testing.T) {
	t.Parallel()
	caddytest.Long(t)
	c := caddytest.Start(t, commandSite(""))
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"top", "--watch"}, "No key was denied lately.\n\nNo key was denied lately.\n"},
		{[]string{"top", "api", "--watch", "--json"}, "[]\n[]\n"},
		{[]string{"status", "--watch"}, "ALLOWED"},
	} {
		process := c.Command(append([]string{"rate-limit"}, test.args...)...)
		var log caddytest.Output
		b := caddytest.StartBackground(t, process, &log)
		caddytest.EventuallySees(t, "outputs follow each other", log.String, func(shown string) bool { return strings.Contains(shown, test.want) })
		b.Stop()
		if code := process.ProcessState.ExitCode(); code != 0 || strings.Contains(log.String(), "\x1b") {
			t.Errorf("%q: exit code %d, %q", test.args, code, log.String())
		}
	}
	first := c.RateLimit(t, "top", "--watch", "--address", "127.0.0.1:1").Fails(t, 1, "no Caddy answers")
	if first.Out != "" {
		t.Errorf("it prints %q", first.Out)
	}
}
