package limiter_test

import (
	"crypto/tls"
	"net/http/httptest"
	"testing"
)

// A request before the end of the handshake can have any address. So a zone that needs the address of the client sends it back,
// and nobody is charged.
func TestEarlyData(t *testing.T) {
	const limit = `"limits":[{"algorithm":"fixed_window","events":5,"window":"1h"}]`
	serve := serveZones(t, `
		"addresses":{"match":[{"path":["/address","/both"]}],"key":["{http.request.header.Api-Key}","{http.request.remote.host}","{http.request.header.Last}"],`+limit+`},
		"everybody":{"match":[{"path":["/both"]}],`+limit+`},
		"exempt":{"match":[{"path":["/exempt"]}],"exempt":[{"client_ip":{"ranges":["192.0.2.0/24"]}}],`+limit+`},
		"tried":{"match":[{"path":["/shadow"]}],"shadow":true,"key":"{http.vars.client_ip}",`+limit+`},
		"banned":{"match":[{"path":["/banned/zone"]}],"exempt":[{"path":["/banned/exempt","/shadow","/exempt","/address","/both"]}],
			"key":["{http.request.header.Api-Key}","{http.vars.client_ip}","{http.request.header.Last}"],"ban":{"duration":"1h","scope":"handler"},`+limit+`}`, 0)
	for _, test := range []struct {
		path, key, kind string
		verified        bool
		status          int
		limits          string
	}{
		{path: "/address", status: 425},
		{path: "/both", status: 425},
		{path: "/both", kind: "application/grpc", status: 200}, // with a status of gRPC
		{path: "/address", key: "known", status: 200, limits: `"addresses";r=4;t=3600`},
		{path: "/shadow", status: 200},
		{path: "/banned/other", status: 425},
		{path: "/banned/exempt", status: 200},
		{path: "/exempt", status: 425},
		{path: "/both", verified: true, status: 200, limits: `"addresses";r=4;t=3600, "everybody";r=4;t=3600`},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", test.path, nil)
		r.TLS = &tls.ConnectionState{HandshakeComplete: test.verified}
		r.Header.Set("Api-Key", test.key)
		r.Header.Set("Content-Type", test.kind)
		w := serve(r)
		grpc := ""
		if test.kind != "" {
			grpc = "14"
		}
		h := w.Header()
		if w.Code != test.status || h.Get("RateLimit") != test.limits || h.Get("Retry-After") != "" || h.Get("Grpc-Status") != grpc {
			t.Errorf("%+v: status %d, fields %v", test, w.Code, h)
		}
	}
}
