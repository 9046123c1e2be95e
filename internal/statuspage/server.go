// Package statuspage serves a page that shows what the zones of running Caddys do, and that changes
// single keys. The page runs in a browser on the operator's machine. Its server listens only there,
// and relays the page's requests to the admin API of rate limits. It never relays any other request.
package statuspage

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminclient"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/palette"
)

// server serves the page. Everybody on this machine can connect to it. Every page that the operator's
// browser shows can, too. So it checks each request: see checkHost and checkCall.
type server struct {
	listener  net.Listener
	port      string
	token     string
	instances []adminclient.Instance
	page      []byte
	policy    string // the page's Content-Security-Policy
}

//go:embed page
var pageFiles embed.FS

// scripts are the parts of the page's script, in their order.
var scripts = []string{"base.js", "instances.js", "chart.js", "keys.js", "changes.js", "zones.js", "now.js", "explain.js", "main.js"}

// Run serves the page at a loopback address, such as localhost:0, until ctx is done. It calls started
// with the address of the page, which has a secret token. The page is about these instances.
func Run(ctx context.Context, listen string, instances []adminclient.Instance, started func(url string) error) error {
	s, err := newServer(listen, instances)
	if err != nil {
		return err
	}
	if err := started(s.url()); err != nil {
		_ = s.listener.Close()
		return err
	}
	return s.serve(ctx)
}

func newServer(listen string, instances []adminclient.Instance) (*server, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w: write for example localhost:0", listen, err)
	}
	if !isLoopback(host) {
		return nil, fmt.Errorf("--listen %s is not a loopback address, and everybody who reaches the page can change limits: "+
			"write localhost:%s, and on another machine ssh -L %[2]s:localhost:%[2]s", listen, port)
	}
	s := &server{token: rand.Text(), instances: instances}
	if err := s.makePage(); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", listen); err != nil {
		return nil, fmt.Errorf("--listen %s: %w", listen, err)
	}
	_, s.port, err = net.SplitHostPort(s.listener.Addr().String())
	return s, err
}

// isLoopback reports whether a host is a loopback address, or localhost.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// url returns the address of the page. It has the token in the fragment, which browsers send to
// nobody. The host is an address, because another user's program could listen at the other address
// of localhost.
func (s *server) url() string {
	return fmt.Sprintf("http://%s/#token=%s", s.listener.Addr(), s.token)
}

// makePage puts the page together. The policy allows its style and its script by their hashes, and
// nothing else.
func (s *server) makePage() error {
	read := func(name string) []byte {
		text, err := pageFiles.ReadFile(path.Join("page", name))
		if err != nil {
			panic(err) // the program was built without the file
		}
		return text
	}
	style := []byte(palette.Fill(string(read("page.css"))))
	script := []byte("'use strict';\n")
	for _, name := range scripts {
		script = append(script, read(name)...)
	}
	page := read("page.html")
	for placeholder, text := range map[string][]byte{"/* style */": style, "/* script */": script} {
		if bytes.Count(page, []byte(placeholder)) != 1 {
			return fmt.Errorf("page.html must have %s once", placeholder)
		}
		page = bytes.Replace(page, []byte(placeholder), text, 1)
	}
	hash := func(text []byte) string {
		sum := sha256.Sum256(text)
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	s.page = page
	s.policy = "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
		"; require-trusted-types-for 'script'; trusted-types 'none'"
	return nil
}

// serve serves requests until ctx is done.
func (s *server) serve(ctx context.Context) error {
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    128 << 10, // a key of 10 kB in an address takes up to 30 kB
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	if err := h.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// tokenField is the header field with the token. Pages of other origins can't set such a field
// without being asked first, and the server never answers such a question.
const tokenField = "Status-Page-Token"

// ServeHTTP implements [http.Handler]:
//
//	GET /                        the page
//	GET /instances               the addresses of the admin endpoints
//	    /instances/<n>/<path>    a request to /rate_limit/<path> of the n-th, counted from 0
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")

	if err := s.checkHost(r); err != nil {
		fail(w, http.StatusForbidden, err)
		return
	}
	switch path := r.URL.EscapedPath(); {
	case path == "/":
		s.servePage(w, r)
	case path == "/instances" || strings.HasPrefix(path, "/instances/"):
		if err := s.checkCall(r); err != nil {
			fail(w, http.StatusForbidden, err)
			return
		}
		s.serveCall(w, r, strings.TrimPrefix(strings.TrimPrefix(path, "/instances"), "/"))
	default:
		fail(w, http.StatusNotFound, errors.New("there is nothing here: the page is at /"))
	}
}

// servePage answers with the page. It is the same for everybody, so it needs no token.
func (s *server) servePage(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		fail(w, http.StatusMethodNotAllowed, errors.New("the page answers only GET"))
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", s.policy)
	_, _ = w.Write(s.page)
}

// serveCall answers a call of the page's script. The path is below /instances/.
func (s *server) serveCall(w http.ResponseWriter, r *http.Request, path string) {
	if path == "" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.instances)
		return
	}
	number, path, _ := strings.Cut(path, "/")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= len(s.instances) {
		fail(w, http.StatusNotFound, fmt.Errorf("there is no instance %s", number))
		return
	}
	relay(w, r, s.instances[i], path)
}

// maxBody is the maximum length of a request in bytes, as the admin endpoint takes it.
const maxBody = 64 << 10

// relay sends a request to an instance, and answers with its answer. It writes the path again from its parts, so the
// request can only be about a path below /rate_limit/.
func relay(w http.ResponseWriter, r *http.Request, to adminclient.Instance, path string) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil { // without a part of it, the request could be about another key
		fail(w, http.StatusBadRequest, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, err)
		return
	}
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i], _ = url.PathUnescape(parts[i]) // without an error, because the server has read the path
	}
	status, answer, err := to.Send(r.Context(), r.Method, adminclient.Path(query, parts...), body)
	if err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	if len(answer) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer) // an error means that the browser has left
}

// checkHost returns an error for another host than this machine, and for another port. A page from
// elsewhere has another host even if its name has got the address 127.0.0.1 (DNS rebinding).
func (s *server) checkHost(r *http.Request) error {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = strings.Trim(r.Host, "[]"), "80"
	}
	if !isLoopback(host) || port != s.port {
		return fmt.Errorf("the host %q is not this page's: write localhost:%s; with ssh use the same port on both sides, "+
			"ssh -L %[2]s:localhost:%[2]s", r.Host, s.port)
	}
	return nil
}

// checkCall returns an error for calls of other pages and of other users of this machine. A cookie would not do:
// browsers send cookies to all ports of a host, and so to the programs of other users.
func (s *server) checkCall(r *http.Request) error {
	origin := r.Header.Get("Origin")
	changes := r.Method != http.MethodGet && r.Method != http.MethodHead
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site != "" && site != "same-origin", (origin != "" || changes) && origin != "http://"+r.Host:
		return errors.New("the request is from another page")
	case subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenField)), []byte(s.token)) != 1:
		return errors.New("the token is wrong: open the address that the command has printed")
	}
	return nil
}

// fail answers with an error, as the admin endpoint does.
func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
