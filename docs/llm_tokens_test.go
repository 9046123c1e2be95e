package docs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// startModel starts a language model that answers as OpenAI's chat completions do. Its answer costs as many tokens as
// max_tokens allows, and the prompt costs one. It breaks off a stream after the tokens that the header field Break-After says.
func startModel(t *testing.T) string {
	t.Helper()
	return caddytest.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			MaxTokens     int `json:"max_tokens"`
			Stream        bool
			StreamOptions struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != "/v1/chat/completions" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"what?"},"usage":{"total_tokens":99999}}`)
			return
		}
		usage := fmt.Sprintf(`{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}`, request.MaxTokens, 1+request.MaxTokens)
		if !request.Stream {
			content := `\"usage\": {\"total_tokens\": 1}` + strings.Repeat(" la", request.MaxTokens)
			text := fmt.Sprintf(`{"choices":[{"message":{"content":"%s"}}],"usage":%s}`+"\n", content, usage)
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				text = strings.Join(caddytest.Compress(t, "gzip", text), "")
			}
			fmt.Fprint(w, text)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		event := func(choices, usage string) {
			if request.StreamOptions.IncludeUsage {
				choices += `],"usage":` + usage
			} else {
				choices += "]"
			}
			fmt.Fprintf(w, "data: {\"choices\":[%s}\n\n", choices)
			_ = http.NewResponseController(w).Flush()
		}
		for i := range request.MaxTokens {
			if r.Header.Get("Break-After") == fmt.Sprint(i) {
				panic(http.ErrAbortHandler)
			}
			event(`{"delta":{"content":" la"}}`, "null")
		}
		event("", usage)
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
}

// The recipe llm-tokens charges the tokens that a model has used, in a stream or not. Before Caddy 2.11.7,
// reverse_proxy can cut off the stream of a model as fast as this one, unless it buffers the request;
// docs/compatibility.md says when.
func TestTokensOfAModel(t *testing.T) {
	t.Parallel()
	example := caddytest.ReadFile(t, "examples/llm-tokens/Caddyfile")
	c := caddytest.Start(t, asTestSite(example, "localhost:9000", startModel(t)+" {\n\t\trequest_buffers 64KiB\n\t}"))
	left := int64(20000)
	for _, test := range []struct {
		name, request string
		header        []string
		end           string
		cost          int64
	}{
		{"a completion", `{"messages":[{"role":"user","content":"sing a song"}],"max_tokens":50}`, nil, "}\n", 51},
		{"a stream", `{"messages":[{"content":"sing it"}],"max_tokens":50,"stream":true,"stream_options":{"include_usage":true}}`, nil, "data: [DONE]\n\n", 51},
		{"compressed", `{"messages":[{"content":"sing it"}],"max_tokens":500}`, []string{"Accept-Encoding", "gzip"}, "", 501},
		{"a long answer", `{"messages":[{"content":"sing"}],"max_tokens":1999}`, nil, "}\n", 2000},
		{"a stream without usage", `{"messages":[{"content":"sing it"}],"max_tokens":5,"stream":true}`, nil, "data: [DONE]\n\n", 1000},
		{"a stream that breaks", `{"messages":[],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true}}`, []string{"Break-After", "3"}, "", 1000},
		{"an error", `no request`, nil, "}", 0},
	} {
		header := append([]string{"Authorization", "Bearer alice", "Content-Type", "application/json"}, test.header...)
		r, err := c.Do("POST", "http://"+c.Site+"/v1/chat/completions", test.request, header...)
		if test.end != "" && (err != nil || !strings.HasSuffix(r.Text, test.end)) {
			t.Errorf("%s: %v, %q", test.name, err, r.Text)
		}
		left -= test.cost
		caddytest.Eventually(t, fmt.Sprintf("after %s %d are left", test.name, left), func() bool { return c.Remaining(t, "tokens", "Bearer alice") == left })
	}
}
