package caddytest

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
)

// LargeBody is more than any buffer on its way holds.
var LargeBody = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)

// StartUpstream starts an application, and returns its address. At the end of the test its requests end, too.
func StartUpstream(t testing.TB, handler http.HandlerFunc) (address string) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // first
	return s.Listener.Addr().String()
}
