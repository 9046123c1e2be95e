// Command cost runs a program of tests for go test -exec, and appends to a file the processor seconds of each test,
// with those of the processes that it started:
//
//	go test -json -exec "/tmp/cost /tmp/costs" ./...
//
// Tests that run at the same time share their cost evenly. The program works on Linux only.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	code, err := run(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

// run runs the program, and appends its costs to a file.
func run(file string, args []string) (code int, err error) {
	program := exec.Command(args[0], args[1:]...)
	program.Stdin, program.Stderr = os.Stdin, os.Stderr
	out, err := program.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := program.Start(); err != nil {
		return 0, err
	}
	forward(program.Process)
	m := meter{pid: program.Process.Pid, running: make(map[string]bool), seconds: make(map[string]float64)}
	ended := make(chan struct{})
	go m.measure(ended)
	m.read(out)
	err = program.Wait()
	close(ended)
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		return 0, err
	}
	total := program.ProcessState.UserTime() + program.ProcessState.SystemTime()
	code = program.ProcessState.ExitCode()
	if code < 0 { // a signal has ended it
		code = 1
	}
	return code, m.write(file, total.Seconds())
}

// forward sends the signals to the program that end it: go test sends them after the timeout.
func forward(program *os.Process) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for s := range signals {
			_ = program.Signal(s)
		}
	}()
}

// meter shares out processor time among the tests that run.
type meter struct {
	pid int

	mu      sync.Mutex
	running map[string]bool
	looked  time.Time
	spent   float64 // until then
	seconds map[string]float64
}

// read copies the output, and notes which tests begin, pause, continue and end.
func (m *meter) read(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		_, _ = io.WriteString(os.Stdout, line)
		fields := strings.Fields(strings.TrimLeft(line, "\x16"))
		if len(fields) >= 3 && !strings.Contains(fields[2], "/") && line[0] != ' ' {
			switch what := fields[0] + " " + strings.TrimSuffix(fields[1], ":"); what {
			case "=== RUN", "=== CONT", "=== PAUSE", "--- PASS", "--- FAIL", "--- SKIP":
				m.set(fields[2], what == "=== RUN" || what == "=== CONT")
			}
		}
		if err != nil {
			return
		}
	}
}

// set notes that a test runs or not.
func (m *meter) set(test string, runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.share()
	if runs {
		m.running[test] = true
	} else {
		delete(m.running, test)
	}
}

// measure looks regularly until the program has ended.
func (m *meter) measure(ended <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.mu.Lock()
			m.share()
			m.mu.Unlock()
		case <-ended:
			return
		}
	}
}

// share gives the tests that run what was spent since the last look. A look costs milliseconds, so it is not repeated soon.
func (m *meter) share() {
	if time.Since(m.looked) < 200*time.Millisecond {
		return
	}
	m.looked = time.Now()
	now := spent(m.pid)
	if now > m.spent {
		for test := range m.running {
			m.seconds[test] += (now - m.spent) / float64(len(m.running))
		}
		m.spent = now
	}
}

// write appends the costs: processor seconds, package and test. The cost of the package includes what no test can be
// blamed for.
func (m *meter) write(file string, total float64) error {
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	directory, err := os.Getwd()
	if err != nil {
		return err
	}
	name := filepath.Base(directory)
	text := fmt.Sprintf("%.2f package %s\n", total, name)
	for _, test := range slices.Sorted(maps.Keys(m.seconds)) {
		text += fmt.Sprintf("%.2f %s %s\n", m.seconds[test], name, test)
	}
	_, err = out.WriteString(text)
	return errors.Join(err, out.Close())
}

// spent returns the processor seconds of a process and of all that it has started.
func spent(pid int) (seconds float64) {
	stats := make(map[int]stat)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			if s, ok := readStat(n); ok {
				stats[n] = s
			}
		}
	}
	for n, s := range stats {
		for up := n; up != 0; up = stats[up].parent {
			if up == pid {
				seconds += s.seconds
				break
			}
		}
	}
	return seconds
}

// stat has the parent and the processor time of a process, from /proc.
type stat struct {
	parent  int
	seconds float64 // its own, and those of the processes it has waited for
}

func readStat(pid int) (s stat, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s, false
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name before it may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return s, false
	}
	s.parent, _ = strconv.Atoi(fields[1])
	for _, field := range fields[11:15] {
		ticks, _ := strconv.Atoi(field)
		s.seconds += float64(ticks) / 100
	}
	return s, true
}
