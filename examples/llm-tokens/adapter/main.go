// Command adapter stands between Caddy and a model whose responses say in their body how many
// tokens were used. It copies usage.total_tokens into the trailer X-Tokens-Used.
//
//	adapter -listen localhost:9000 -model http://localhost:8000
package main

import (
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
)

const field = "X-Tokens-Used"

// totalTokens can't match text that the model wrote: JSON escapes the quotes in it.
var totalTokens = regexp.MustCompile(`"total_tokens"\s{0,9}:\s{0,9}(\d{1,10})`)

func main() {
	listen := flag.String("listen", "localhost:9000", "the address for Caddy")
	model := flag.String("model", "http://localhost:8000", "the URL of the model")
	flag.Parse()
	target, err := url.Parse(*model)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*listen, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // a compressed body can't be read here
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusSwitchingProtocols {
				return nil // a WebSocket
			}
			r.Header.Del("Content-Length") // only chunked responses have a trailer
			r.Trailer = http.Header{field: nil}
			r.Body = &counter{ReadCloser: r.Body, trailer: r.Trailer}
			return nil
		},
	}))
}

// counter is the body of a response. It sets the trailer to the last number that it reads.
type counter struct {
	io.ReadCloser
	trailer http.Header
	end     []byte // of the text so far: a match can span two reads
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.end = append(c.end, p[:n]...)
	for _, match := range totalTokens.FindAllSubmatch(c.end, -1) {
		c.trailer.Set(field, string(match[1]))
	}
	c.end = append(c.end[:0], c.end[max(0, len(c.end)-64):]...)
	return n, err
}
