package caddytest

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// Output collects what a process prints. It can be read while the process runs.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
	file *os.File // has the same; nil if nobody will read it
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		_, _ = o.file.Write(p)
	}
	return o.text.Write(p)
}

// begin forgets the text, and writes what follows to a file as well.
func (o *Output) begin(file *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.file = file
	o.text.Reset()
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Background is a process that runs beside the test.
type Background struct {
	Process *exec.Cmd
	Ended   chan struct{} // closed when the process has ended
}

// StartBackground starts a process. Its output goes to log.
func StartBackground(t testing.TB, process *exec.Cmd, log *Output) *Background {
	t.Helper()
	b, err := startBackground(process, log)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func startBackground(process *exec.Cmd, log *Output) (*Background, error) {
	// Under the race detector a process sleeps a second before it exits, unless it is configured
	// otherwise.
	process.Env = append(process.Env, "GORACE=atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return nil, err
	}
	b := &Background{process, make(chan struct{})}
	go func() {
		defer close(b.Ended)
		_ = process.Wait()
	}()
	return b, nil
}

// Stop ends the process. There may be none.
func (b *Background) Stop() {
	if b == nil {
		return
	}
	_ = b.Process.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(Patient/2, func() { _ = b.Process.Process.Kill() })
	<-b.Ended
	kill.Stop()
}

// Patient is a deadline no test reaches by the slowness of its machine.
const Patient = time.Minute
