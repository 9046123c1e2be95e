// Command adapter stands between Caddy and a model whose responses say in their body how many
// tokens were used. It puts that number into the field X-Tokens-Used: into the header of a JSON
// response, and into the trailer of an event stream.
//
//	adapter -listen localhost:9000 -model http://localhost:8000
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
)

const (
	field    = "X-Tokens-Used"
	maxBytes = 16 << 20 // of a JSON response
)

func main() {
	listen := flag.String("listen", "localhost:9000", "the address for Caddy")
	model := flag.String("model", "http://localhost:8000", "the URL of the model")
	flag.Parse()
	target, err := url.Parse(*model)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*listen, newAdapter(target)))
}

func newAdapter(model *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(model)
			r.Out.Header.Del("Accept-Encoding") // a compressed body can't be read here
		},
		ModifyResponse: func(r *http.Response) error {
			switch contentType := r.Header.Get("Content-Type"); {
			case strings.HasPrefix(contentType, "application/json"):
				return countBody(r)
			case strings.HasPrefix(contentType, "text/event-stream"):
				countEvents(r)
			}
			return nil
		},
	}
}

// tokens returns the number in usage.total_tokens.
func tokens(text []byte) (count int64, found bool) {
	var answer struct {
		Usage *struct {
			Total int64 `json:"total_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Usage == nil {
		return 0, false
	}
	return answer.Usage.Total, true
}

func countBody(r *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBytes))
	if err != nil {
		return err
	}
	if count, found := tokens(body); found {
		r.Header.Set(field, strconv.FormatInt(count, 10))
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	return nil
}

func countEvents(r *http.Response) {
	r.Trailer = http.Header{field: nil} // announced
	r.Body = &events{ReadCloser: r.Body, trailer: r.Trailer}
}

// events is the body of an event stream. It sets the trailer when an event has a number.
type events struct {
	io.ReadCloser
	trailer http.Header
	line    []byte
}

func (e *events) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	for _, c := range p[:n] {
		if c != '\n' {
			if len(e.line) < maxBytes {
				e.line = append(e.line, c)
			}
			continue
		}
		if data, isData := bytes.CutPrefix(e.line, []byte("data:")); isData {
			if count, found := tokens(data); found {
				e.trailer.Set(field, strconv.FormatInt(count, 10))
			}
		}
		e.line = e.line[:0]
	}
	return n, err
}
