// Package errtest fails tests with errors that they don't expect. The package never judges an error that a test is about.
package errtest

import "testing"

// None ends the test if there is an error. about says what it is about, if the error doesn't.
func None(t testing.TB, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(append(about, err)...)
	}
}

// Report fails the test if there is an error, and lets it go on.
func Report(t testing.TB, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Error(append(about, err)...)
	}
}
