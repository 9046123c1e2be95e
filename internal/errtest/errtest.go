// Package errtest fails tests with errors that they don't expect. The package never judges an error that a test is about.
package errtest

import (
	"strings"
	"testing"
)

// None ends the test if there is an error. about says what it is about, if the error doesn't.
func None(t testing.TB, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(append(about, err)...)
	}
}

// Report fails the test if there is an error, and lets it continue.
func Report(t testing.TB, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Error(append(about, err)...)
	}
}

// Of returns the error of a call whose other result doesn't matter.
func Of[T any](_ T, err error) error { return err }

// Says fails the test unless there is an error with a text.
func Says(t testing.TB, err error, text string, about ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%v: error %v, want %q", about, err, text)
	}
}
