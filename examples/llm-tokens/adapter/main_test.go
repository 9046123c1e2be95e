package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestAdapter(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"choices": [], "usage": {"total_tokens": 42}}`)
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"choices\": []}\n\n")
			_ = http.NewResponseController(w).Flush()
			fmt.Fprint(w, "data: {\"usage\": {\"total_tokens\": 43}}\n\ndata: [DONE]\n\n")
		default:
			fmt.Fprint(w, "usage")
		}
	}))
	t.Cleanup(model.Close)
	target, _ := url.Parse(model.URL)
	adapter := httptest.NewServer(newAdapter(target))
	t.Cleanup(adapter.Close)
	for _, test := range []struct{ path, header, trailer, body string }{
		{"/json", "42", "", `{"choices": [], "usage": {"total_tokens": 42}}`},
		{"/events", "", "43", "data: {\"choices\": []}\n\ndata: {\"usage\": {\"total_tokens\": 43}}\n\ndata: [DONE]\n\n"},
		{"/", "", "", "usage"},
	} {
		r, err := http.Get(adapter.URL + test.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || string(body) != test.body {
			t.Errorf("%s: %q, %v", test.path, body, err)
		}
		if header, trailer := r.Header.Get(field), r.Trailer.Get(field); header != test.header || trailer != test.trailer {
			t.Errorf("%s: header %q, trailer %q", test.path, header, trailer)
		}
	}
}
