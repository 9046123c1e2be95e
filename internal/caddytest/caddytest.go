// Package caddytest is for tests that run whole Caddys: it starts them, sends them requests, and checks their answers, logs and
// metrics. It never imports the root package: a package of tests links the module into its Caddys by a blank import.
package caddytest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/defaults"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// The tests run each Caddy in a separate process. The process is the test binary with beCaddy in its
// environment.

const beCaddy = "RATE_LIMIT_TEST_BE_CADDY"

// Main runs the tests of a package, such as a [testing.M], in the directory of the module. In a process that a test started,
// it runs Caddy instead.
func Main(m interface{ Run() int }) {
	if os.Getenv(beCaddy) != "" {
		if !Real {
			defaults.Timeout, defaults.DialTimeout, defaults.BodyTimeout = Patient, Patient, Patient
		}
		caddycmd.Main()
		return
	}
	if err := enterModule(); err != nil {
		panic(err)
	}
	code := m.Run()
	stopIdle()
	redistest.EndShared()
	os.Exit(code)
}

// enterModule changes to the directory that has go.mod.
func enterModule() error {
	directory, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return os.Chdir(directory)
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			return os.ErrNotExist
		}
		directory = parent
	}
}

// program returns the path of the test binary.
func program() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// WriteCaddyCommand writes a program that is Caddy.
func WriteCaddyCommand(t testing.TB, path string) {
	t.Helper()
	WriteFile(t, path, fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", beCaddy, program()), 0o755)
}
