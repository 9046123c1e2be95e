package bodies

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/readahead"
)

const (
	userInJSON = JSONPrefix + "user"
	userInForm = FormPrefix + "user"
)

// deadlines are all deadlines that were set for reading.
type deadlines []time.Time

func (d *deadlines) SetReadDeadline(deadline time.Time) error {
	*d = append(*d, deadline)
	return nil
}

// newRequest returns the body of a request, with the fields of both kinds.
func newRequest(memory *Memory, contentType, body string) (*http.Request, *RequestBody) {
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	fields := new(Fields)
	fields.Add(userInJSON, "http.request.uri", userInForm, userInJSON)
	return r, NewRequestBody(r, new(deadlines), fields, memory)
}

func wantValue(t *testing.T, b *RequestBody, placeholder, value string, known bool) {
	t.Helper()
	if got, ok := b.Value(placeholder); got != value || ok != known {
		t.Errorf("the value is %q %v, want %q %v", got, ok, value, known)
	}
}

var everyBody = Policy{Limit: 1 << 20, Timeout: time.Minute}

// A zone has the values only if it can read the body itself. Other zones still have values that it can't read.
func TestValuesOfOtherZones(t *testing.T) {
	for _, pass := range []bool{false, true} {
		_, b := newRequest(NewMemory(), "application/json", `{"user":"alice"}`)
		wantValue(t, b, userInJSON, "", false)
		if err := b.Read(kindJSON, everyBody); err != nil {
			t.Fatal(err)
		}
		wantValue(t, b, userInJSON, "alice", true)
		wantValue(t, b, userInForm, "", true)
		wantValue(t, b, JSONPrefix+"other", "", false)
		b.EndZone()
		small := Policy{Limit: 3, Timeout: time.Minute, Pass: pass}
		if err := b.Read(kindJSON, small); pass != (err == nil) {
			t.Errorf("pass %v: %v", pass, err)
		}
		wantValue(t, b, userInJSON, "", true)
		if err := b.Read(kindForm, small); err != nil {
			t.Error(err)
		}
		wantValue(t, b, userInJSON, "", true)
		b.EndZone()
		wantValue(t, b, userInJSON, "alice", true)
	}
}

// A body of another kind is not read, and the zone has empty values.
func TestBodyOfAnotherKind(t *testing.T) {
	for _, test := range []struct {
		contentType, body string
		kinds             Kinds
	}{
		{"application/json", `{"user":"alice"}`, kindForm},
		{"application/x-www-form-urlencoded", "user=alice", kindJSON},
		{"text/plain", "user=alice", kindJSON | kindForm},
		{"application/json", "", kindJSON},
	} {
		r, b := newRequest(NewMemory(), test.contentType, test.body)
		if err := b.Read(test.kinds, Policy{}); err != nil { // with these bounds, reading fails
			t.Error(err)
		}
		wantValue(t, b, userInForm, "", true)
		b.EndZone()
		wantValue(t, b, userInForm, "", false)
		if got, err := io.ReadAll(r.Body); string(got) != test.body || err != nil {
			t.Errorf("the next handler reads %q %v", got, err)
		}
		b.Release()
	}
}

// Values that find no memory are not kept for later handlers, but can be read again.
func TestValuesAreKeptIfThereIsRoom(t *testing.T) {
	const body = `{"user":"alice"}`
	for room, want := range map[int64]bool{4: false, 5: true} {
		memory := NewMemory()
		memory.Values = readahead.NewMemory(room)
		_, b := newRequest(memory, "application/json", body)
		for range 2 {
			if err := b.Read(kindJSON, everyBody); err != nil {
				t.Fatal(err)
			}
			wantValue(t, b, userInJSON, "alice", true)
			b.EndZone()
			b.KeepValues()
			if _, kept := b.Value(userInJSON); kept != want || memory.Bodies.Used() != int64(len(body)+1) {
				t.Errorf("kept %v with room for %d bytes, %d are taken", kept, room, memory.Bodies.Used())
			}
		}
		if !b.MoveToDelayed() || memory.Delayed.Used() == 0 {
			t.Error("the body is not moved")
		}
		b.Release()
		b.Release()
		if memory.Bodies.Used() != 0 || memory.Delayed.Used() != 0 || memory.Values.Used() != 0 {
			t.Errorf("%+v bytes are not given back", memory)
		}
	}
}

// A body that no zone needs can be asked everything.
func TestNoBody(t *testing.T) {
	var b *RequestBody
	wantValue(t, b, userInJSON, "", false)
	b.EndZone()
	b.KeepValues()
	b.ReleaseUnread()
	b.ReleaseAfter(errors.New("any"))
	b.Release()
	if b.Held() || !b.MoveToDelayed() {
		t.Error("there is a body")
	}
}

// Servers read different values from a body that is malformed, or in which a field is repeated. So a zone that needs
// the field can't read the body.
func TestMalformedBodies(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	for _, test := range []struct {
		contentType, body string
		malformed         bool
	}{
		{"application/json", `{"user":"rand","user":"alice"}`, true},
		{"application/json", `{"user":null,"\u0075ser":"alice"}`, true},
		{"application/json", `{"user":"alice","x":1,"x":{"user":2,"user":3}}`, false},
		{"application/json", `{"user":"alice",}`, true},
		{"application/json", `{"x" 1,"user":"alice"}`, true},
		{"application/json", `{"user":"alice","x":[1}}`, true},
		{"application/json", `{"user":"alice"`, true},
		{"application/json", `{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,"user":"alice"}`, true}, // too deep
		{form, "user=rand&user=alice", true},
		{form, "user=rand&x=1&us%65r=alice", true},
		{form, "user=alice&x=1&x=2", false},
	} {
		_, b := newRequest(NewMemory(), test.contentType, test.body)
		err := b.Read(kindJSON|kindForm, everyBody)
		if test.malformed != (err == errMalformed) || !test.malformed && err != nil {
			t.Errorf("%s: %v", test.body, err)
		}
		inJSON, _ := b.Value(userInJSON)
		inForm, _ := b.Value(userInForm)
		if got := inJSON + inForm; !test.malformed && got != "alice" || test.malformed && got != "" {
			t.Errorf("%s: the value is %q", test.body, got)
		}
	}
}

// Zones with a timeout set the deadline of the connection, which counts from the first read. It stays until the body
// ends, because the server reads the rest of a body that is denied. Zones without a timeout set none.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := new(deadlines)
		source := &slowBody{wait: time.Second, rest: `{"user":"alice"}`}
		r := httptest.NewRequest("POST", "/", source)
		r.Header.Set("Content-Type", "application/json")
		fields := new(Fields)
		fields.Add(userInJSON)
		b := NewRequestBody(r, set, fields, NewMemory())
		start := time.Now()
		want := []time.Time{start.Add(time.Minute), start.Add(time.Hour), {}}
		for _, test := range []struct {
			policy Policy
			err    *Error
		}{
			{Policy{Limit: 5, Timeout: time.Minute}, errTooLarge},
			{Policy{Limit: 6}, errTooLarge},
			{Policy{Limit: 100, Timeout: time.Hour}, nil},
			{Policy{Limit: 100, Timeout: time.Hour}, nil},
		} {
			if err := b.Read(kindJSON, test.policy); err != test.err {
				t.Errorf("%+v: %v, want %v", test.policy, err, test.err)
			}
		}
		if !slices.Equal(*set, want) {
			t.Errorf("deadlines %v, want %v", *set, want)
		}
	})
}

// slowBody gives one byte after each wait.
type slowBody struct {
	wait time.Duration
	rest string
}

func (s *slowBody) Read(p []byte) (int, error) {
	time.Sleep(s.wait) // in virtual time
	if s.rest == "" {
		return 0, io.EOF
	}
	n := copy(p[:1], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
