package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func TestRecord(t *testing.T) {
	lines, err := record(exec.Command("printf", `one <b>\ntwo\n`))
	if err != nil || len(lines) != 3 {
		t.Fatal(lines, err)
	}
	if lines[0].text != `$ printf one <b>\ntwo\n` || lines[1].text != "one <b>" || lines[2].text != "two" {
		t.Errorf("%+v", lines)
	}
	if lines[2].at < lines[1].at+shortestPause {
		t.Errorf("%+v", lines)
	}
	var svg bytes.Buffer
	if err := draw(&svg, lines); err != nil || !strings.Contains(svg.String(), ">one &lt;b&gt;</text>") {
		t.Error(err, svg.String())
	}
	if _, err := record(exec.Command("false")); err == nil {
		t.Error("a command that fails is no error")
	}
}

// The longest wait in a picture is bounded, however long the command takes.
func TestRecordShortensPauses(t *testing.T) {
	lines, err := record(exec.Command("sh", "-c", "sleep 1.5; echo done"))
	if err != nil || lines[1].at != longestPause {
		t.Errorf("%+v %v, want %v", lines, err, longestPause)
	}
}
