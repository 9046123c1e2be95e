package docs_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// startModel starts a language model that answers as OpenAI's chat completions do. A prompt costs one
// token for each word, and the answer has as many tokens as max_tokens allows. It breaks off a stream after
// the tokens that the header field Break-After says.
func startModel(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Messages      []struct{ Content string }
			MaxTokens     int `json:"max_tokens"`
			Stream        bool
			StreamOptions struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != "/v1/chat/completions" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"what?"},"usage":{"total_tokens":99999}}`)
			return
		}
		prompt := 0
		for _, message := range request.Messages {
			prompt += len(strings.Fields(message.Content))
		}
		usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"completion_tokens_details":{"reasoning_tokens":0}}`,
			prompt, request.MaxTokens, prompt+request.MaxTokens)
		if !request.Stream {
			w.Header().Set("Content-Type", "application/json")
			var to io.Writer = w
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				compressor := gzip.NewWriter(w)
				defer compressor.Close()
				to = compressor
			}
			fmt.Fprintf(to, "{\n  \"id\": \"chatcmpl-1\",\n  \"object\": \"chat.completion\",\n  \"choices\": [{\"index\": 0, \"message\": "+
				"{\"role\": \"assistant\", \"content\": \"\\\"usage\\\": {\\\"total_tokens\\\": 1}%s\"}, \"finish_reason\": \"length\"}],\n  \"usage\": %s\n}\n",
				strings.Repeat(" la", request.MaxTokens), usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		event := func(choices, usage string) {
			if request.StreamOptions.IncludeUsage {
				usage = `,"usage":` + usage
			} else {
				usage = ""
			}
			fmt.Fprintf(w, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[%s]%s}\n\n", choices, usage)
			_ = http.NewResponseController(w).Flush()
		}
		for i := range request.MaxTokens {
			if r.Header.Get("Break-After") == fmt.Sprint(i) {
				panic(http.ErrAbortHandler)
			}
			event(`{"index":0,"delta":{"content":" la"},"finish_reason":null}`, "null")
		}
		event(`{"index":0,"delta":{},"finish_reason":"length"}`, "null")
		if request.StreamOptions.IncludeUsage {
			event("", usage)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// The recipe llm-tokens charges the tokens that a model has used, in a stream or not. Before Caddy 2.11.7,
// reverse_proxy can cut off the stream of a model as fast as this one, unless it buffers the request;
// docs/compatibility.md says when.
func TestTokensOfAModel(t *testing.T) {
	t.Parallel()
	c := startRecipe(t, "llm-tokens", "localhost:9000", startModel(t)+" {\n\t\trequest_buffers 64KiB\n\t}")
	left := int64(20000)
	for _, test := range []struct {
		name, request string
		header        []string
		end           string
		cost          int64
	}{
		{"a completion", `{"messages":[{"role":"user","content":"sing a song"}],"max_tokens":50}`, nil, "}\n", 53},
		{"a stream", `{"messages":[{"content":"sing it"}],"max_tokens":50,"stream":true,"stream_options":{"include_usage":true}}`, nil, "data: [DONE]\n\n", 52},
		{"compressed", `{"messages":[{"content":"sing it"}],"max_tokens":500}`, []string{"Accept-Encoding", "gzip"}, "", 502},
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
