package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/closest"
)

// instance is a Caddy, by the address of its admin endpoint.
type instance string

// patience is how long a command waits for an answer. An answer that needs Redis comes after the
// timeout of Redis at the latest.
const patience = 10 * time.Second

// maxAnswer is how many bytes of an answer a command reads.
const maxAnswer = 64 << 20

// unreachableError means that no admin endpoint answers.
type unreachableError struct {
	instance instance
	reason   string
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("no Caddy answers at %s (%s): start Caddy, for example with caddy run, or name its admin endpoint with --address; "+
		"a Caddy with admin off in its configuration has none", e.instance, e.reason)
}

// answerError is an error that an admin endpoint answered.
type answerError struct {
	instance instance
	status   int
	message  string // empty if the answer is not from the admin API
}

func (e *answerError) Error() string {
	switch {
	case e.status == http.StatusForbidden && strings.HasPrefix(string(e.instance), ":"):
		return fmt.Sprintf("the Caddy at %s answers only to known addresses (%s): write --address localhost%[1]s", e.instance, e.message)
	case e.status == http.StatusForbidden:
		return fmt.Sprintf("the Caddy at %s answers only to known addresses (%s): write origins %s in the admin block of its global options, "+
			"or use another --address", e.instance, e.message, e.instance.host())
	case e.message == "" && e.status == http.StatusNotFound:
		return fmt.Sprintf("the server at %s has no admin API for rate limits: name the admin endpoint of Caddy with --address, "+
			"and build that Caddy with this module, in the version of this command", e.instance)
	case e.message == "":
		return fmt.Sprintf("the server at %s answers with status %d: is it the admin endpoint of Caddy?", e.instance, e.status)
	}
	return commandWords(e.message, e.status)
}

// commandWords returns an error of the admin API as people need it who write a command and no body.
func commandWords(message string, status int) string {
	message = strings.TrimSuffix(message, " (percent-encoded)") // the command encodes keys itself
	switch {
	case strings.HasPrefix(message, "the body: limits["):
		message, _, _ = strings.Cut(strings.TrimPrefix(message, "the body: "), `; write for example {"`)
		_, message, _ = strings.Cut(message, " ")
		return "the limit " + strings.Replace(message, ": write one of ", ": write unlimited, or one of ", 1)
	case status == http.StatusServiceUnavailable && !strings.Contains(message, "is no budget"):
		return message + "; caddy rate-limit status shows the store"
	}
	return message
}

// host returns the address as an entry of the list of origins.
func (i instance) host() string {
	_, address, ok := strings.Cut(string(i), "/")
	if !ok {
		return string(i)
	}
	return strings.TrimPrefix(address, "/")
}

// request calls the admin API. The path comes after /rate_limit/. The body can be nil.
func (i instance) request(method, path string, body any) (json.RawMessage, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(compactJSON(body))
	}
	changes := method == http.MethodPut || method == http.MethodDelete
	return i.await(changes, func() (json.RawMessage, error) {
		header := http.Header{"Connection": {"close"}} // otherwise the client keeps the connection, and never uses it again
		response, err := caddycmd.AdminAPIRequest(string(i), method, "/rate_limit/"+path, header, reader)
		if err != nil {
			return nil, i.readError(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
		switch {
		case err != nil:
			err = &unreachableError{i, err.Error()}
		case len(text) > maxAnswer:
			err = fmt.Errorf("the answer of %s is longer than %d bytes: is it the admin endpoint of Caddy?", i, maxAnswer)
		case len(text) == 0 && changes && response.StatusCode == http.StatusNoContent:
		case !json.Valid(text):
			err = &answerError{i, response.StatusCode, ""}
		}
		return text, err
	})
}

// await returns the answer of a call that may make changes, or an error after [patience].
func (i instance) await(changes bool, call func() (json.RawMessage, error)) (json.RawMessage, error) {
	type result struct {
		body json.RawMessage
		err  error
	}
	results := make(chan result, 1)
	go func() {
		body, err := call()
		results <- result{body, err}
	}()
	select {
	case r := <-results:
		return r.body, r.err
	case <-time.After(patience):
		reason := fmt.Sprintf("no answer within %v", patience)
		if changes {
			reason += ", so it is unknown whether a change is made"
		}
		return nil, &unreachableError{i, reason}
	}
}

// errorStatus matches the errors of AdminAPIRequest about statuses from 400 on.
var errorStatus = regexp.MustCompile(`(?s)^caddy responded with error: HTTP (\d+): (.*)$`)

// readError returns the meaning of an error of AdminAPIRequest, which is only a text.
func (i instance) readError(err error) error {
	if m := errorStatus.FindStringSubmatch(err.Error()); m != nil {
		status, _ := strconv.Atoi(m[1])
		var body struct{ Error string }
		_ = json.Unmarshal([]byte(m[2]), &body) // another server's body isn't JSON
		return &answerError{i, status, body.Error}
	}
	reason := strings.TrimPrefix(err.Error(), "performing request: ")
	if _, cause, ok := strings.Cut(reason, `": `); ok { // after the method and the URL
		reason = cause
	}
	return &unreachableError{i, reason}
}

// misunderstood returns an error about an answer that could not be decoded.
func (i instance) misunderstood(err error) error {
	return fmt.Errorf("the Caddy at %s answers in a way that this command doesn't understand (%w): use the command of its version", i, err)
}

// get returns the body of a GET.
func (i instance) get(path string) (json.RawMessage, error) {
	return i.request(http.MethodGet, path, nil)
}

func (i instance) getZones() (json.RawMessage, error) { return i.get("zones") }

func (i instance) getZone(zone string) (json.RawMessage, error) {
	return i.requestZone(http.MethodGet, zone, "", nil)
}

// requestZone calls the admin API about a zone. The rest comes after the name of the zone.
func (i instance) requestZone(method, zone, rest string, body any) (json.RawMessage, error) {
	answer, err := i.request(method, "zones/"+adminapi.PathSegment(zone)+rest, body)
	if failed, ok := err.(*answerError); ok && failed.status == http.StatusNotFound && failed.message != "" {
		return nil, i.unknownZone(zone, err)
	}
	return answer, err
}

// requestKey calls the admin API about a key. The resource is keys, override or ban.
func (i instance) requestKey(method, zone, resource, key string, body any) (json.RawMessage, error) {
	return i.requestZone(method, zone, "/"+resource+"?key="+url.QueryEscape(key), body)
}

// unknownZone returns an error that names the zones that exist, if the instance doesn't have this zone.
func (i instance) unknownZone(zone string, err error) error {
	names, listErr := i.zoneNames()
	if listErr != nil {
		return err
	}
	var quoted []string
	for _, name := range names {
		if name == zone {
			return err
		}
		quoted = append(quoted, quoteName(name))
	}
	hint := "its zones: "
	if n := closest.Index(zone, names); n >= 0 {
		hint = "did you mean " + quoted[n] + "? Its zones: "
	}
	if len(quoted) > maxNamed {
		quoted = append(quoted[:maxNamed], "…")
	}
	return fmt.Errorf("there is no zone %s at %s: %s%s", quoteName(zone), i, hint, strings.Join(quoted, ", "))
}

// maxNamed is how many zones an error names.
const maxNamed = 20

// zoneNames returns the names of the zones, each once.
func (i instance) zoneNames() (names []string, err error) {
	var zones []adminapi.Zone
	body, err := i.getZones()
	if err == nil {
		err = json.Unmarshal(body, &zones)
	}
	for _, z := range zones {
		names = append(names, z.Name)
	}
	return slices.Compact(names), err // they are sorted
}
