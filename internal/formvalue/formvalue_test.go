package formvalue_test

import (
	"bytes"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/formvalue"
)

const maxValue = 1000

// A value has a bound. The other fields have none.
func TestTooLong(t *testing.T) {
	for text, tooLong := range map[string]bool{
		strings.Repeat("x", maxValue):                false,
		strings.Repeat("x", maxValue+1):              true,
		strings.Repeat("\xff", maxValue/3):           false, // each becomes three bytes
		strings.Repeat("\xff", maxValue/3+1):         true,
		strings.Repeat("x", maxValue/2) + "\xff\xff": false,
	} {
		want := error(nil)
		if tooLong {
			want = formvalue.ErrTooLong
		}
		other := strings.Repeat("x", 2*maxValue)
		for _, escaped := range []string{text, url.QueryEscape(text)} {
			value, ok, err := formvalue.URLEncoded([]byte(other+"="+other+"&user="+escaped), "user", maxValue)
			if err != want || ok == tooLong || ok && value != valid(text) {
				t.Errorf("%d bytes: %d, %v, %v", len(text), len(value), ok, err)
			}
		}
	}
}

// TestLongTextsTakeNoMemory checks that no name and no value is decoded as a whole.
func TestLongTextsTakeNoMemory(t *testing.T) {
	long := strings.Repeat("%41", 1<<20)
	var before, after runtime.MemStats
	for _, body := range [][]byte{[]byte("user=" + long), []byte(long), []byte("x=" + long), []byte(strings.Repeat("+", 1<<20) + long)} {
		runtime.ReadMemStats(&before)
		_, _, _ = formvalue.URLEncoded(body, "user", maxValue)
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 1<<18 {
			t.Errorf("%.10q: %d bytes", body, after.TotalAlloc-before.TotalAlloc)
		}
	}
}

// TestNamesOfPHP checks the names that PHP reads as the field, beside the field and alone.
func TestNamesOfPHP(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, test := range []struct {
		field, other string
		same, alone  bool // whether the name is rejected beside the field, and alone
	}{
		{"user", " user", true, true},
		{"user", strings.Repeat(" ", 1000) + "user", true, true},
		{"user", strings.Repeat(" ", 1000) + "user\x00" + long, true, true},
		{"user", "user\x00", true, true},
		{"user", "user\x00" + long, true, true},
		{"user", " user\x00[x]", true, true},
		{"user", "user[]", true, false},
		{"user", "user[" + long + "]", true, false},
		{"user", strings.Repeat(" ", 1000) + "user[" + long + "]", true, true},
		{"user_name", "user.name", true, false},
		{"user_name", "user name", true, false},
		{"user_name", "user.name[x]", true, false},
		{"user_name", "user[name", true, true},
		{"user_name", "user[name\x00]", true, true},
		{"user.name", "user_name", true, false},
		{"user.name", " user_name", true, true},
		{"user[name]", " user[name]", true, true},
		{"user[name]", "user[name]x", true, false},
		{"user[name]", "user[name][]", true, false},
		{" user", "user", true, false},
		{"u\ufffd", " u\xff", true, true},

		{"user", "users", false, false},
		{"user", "user ", false, false}, // user_ in PHP
		{"user", "\tuser", false, false},
		{"user", "x user", false, false},
		{"user", "\x00user", false, false},
		{"user", "[user]", false, false},
		{"user", "x[user]", false, false},
		{"user", long, false, false},
		{"user", strings.Repeat(" ", 1000) + long, false, false},
		{"user", strings.Repeat(" ", 1000), false, false},
		{"user_name", "user[name]", false, false},
		{"user[name]", "user[mail]", false, false},
		{"user[name]", "user.name", false, false},
	} {
		check := func(what string, want error, names ...string) {
			t.Helper()
			for _, escape := range []func(string) string{url.QueryEscape, escapeAll} {
				pairs := make([]string, len(names))
				for i, name := range names {
					pairs[i] = escape(name) + "=bob"
				}
				got, ok, err := formvalue.URLEncoded([]byte(strings.Join(pairs, "&")), test.field, maxValue)
				if err != want || ok != (err == nil && len(names) > 1) || ok != (got == "bob") {
					t.Errorf("%.40q with the field %q, %s: %q, %v, %v, want %v", test.other, test.field, what, got, ok, err, want)
				}
			}
		}
		rejected := map[bool]error{true: formvalue.ErrAmbiguous}
		check("alone", rejected[test.alone], test.other)
		check("before it", rejected[test.same], test.other, test.field)
		check("after it", rejected[test.same], test.field, test.other)
	}
}

// escapeAll escapes each byte.
func escapeAll(text string) string {
	var escaped strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&escaped, "%%%02x", c)
	}
	return escaped.String()
}

func TestURLEncoded(t *testing.T) {
	for _, test := range []struct {
		body, field, want string
		ok                bool
	}{
		{body: "", field: "user"},
		{body: "user", field: "user", ok: true},
		{body: "user=", field: "user", ok: true},
		{body: "=x&user=alice", field: "user", want: "alice", ok: true},
		{body: "=x&user=alice", field: "", want: "x", ok: true},
		{body: "&&user=alice&", field: "user", want: "alice", ok: true},
		{body: "x=1&user=alice&x=2", field: "user", want: "alice", ok: true},
		{body: "User=bob", field: "user"},
		{body: "users=bob", field: "user"},
		{body: "us%65r=al%69ce+b%2Bc%26", field: "user", want: "alice b+c&", ok: true},
		{body: "first+name=a=b", field: "first name", want: "a=b", ok: true},
		{body: "user=alice%3Buser=bob", field: "user", want: "alice;user=bob", ok: true},
		{body: "user={\"a\"}", field: "user", want: "{\"a\"}", ok: true},
		{body: "user=%C3%A9%c3%a9", field: "user", want: "éé", ok: true},
		{body: "user=%ff%FE\xe2\x82", field: "user", want: "\ufffd\ufffd\ufffd\ufffd", ok: true},
		{body: "u\xff=x", field: "u\ufffd", want: "x", ok: true},
		{body: "user=a\x00b%00", field: "user", want: "a\x00b\x00", ok: true},
		{body: "&?user=bob&user=alice?", field: "user", want: "alice?", ok: true}, // only the first byte is skipped
		{body: "user=%EF%BB%BFalice", field: "user", want: "\ufeffalice", ok: true},
	} {
		value, ok, err := formvalue.URLEncoded([]byte(test.body), test.field, maxValue)
		if value != test.want || ok != test.ok || err != nil {
			t.Errorf("%q: the field %q is %q, %v, %v, want %q, %v", test.body, test.field, value, ok, err, test.want, test.ok)
		}
	}
}

// TestURLEncodedRejectsInvalidEscapes checks that they are found in other fields, and behind the field.
func TestURLEncodedRejectsInvalidEscapes(t *testing.T) {
	for _, body := range []string{
		"user=%", "user=%4", "user=%4&x=1", "user=%zz", "user=%4g", "user=a&other=%", "%=1&user=a", "user=%x1&user=a", "user=%%41",
	} {
		if value, ok, err := formvalue.URLEncoded([]byte(body), "user", maxValue); value != "" || ok || err != formvalue.ErrEscape {
			t.Errorf("%q: got %q, %v, %v", body, value, ok, err)
		}
	}
}

// A client must not be able to show one value to this package and another one to a server.
func TestURLEncodedRejectsAmbiguousBodies(t *testing.T) {
	for _, body := range []string{
		"user=bob;user=alice", "user=bob;&user=alice", "x=;user=alice&user=bob", // net/url skips the first field
		"user=alice&user=bob", "user=bob&x=1&us%65r=alice", "user=&user=alice", "user&user", "user=alice&user=alice", // the first one or the last one
		`{"user":"alice","x":"&user=bob&"}`, " \r\n[0,\"&user=bob\"]", `"&user=bob"`,
		"\xef\xbb\xbf{\"user\":\"alice\",\"x\":\"&user=bob&\"}", "\xff\xfe{\x00&user=bob&", "\xfe\xff\x00{&user=bob&", "\x00{&user=bob&",
		"?user=bob&user=alice", "?", "\xef\xbb\xbfuser=bob&user=alice", "\xef\xbb\xbf?user=bob&user=alice", // URLSearchParams skips the ?
	} {
		if value, ok, err := formvalue.URLEncoded([]byte(body), "user", maxValue); value != "" || ok || err != formvalue.ErrAmbiguous {
			t.Errorf("%q: got %q, %v, %v", body, value, ok, err)
		}
	}
}

// FuzzURLEncoded compares URLEncoded with net/url.
func FuzzURLEncoded(f *testing.F) {
	for _, body := range []string{
		"user=alice&x=1", "user", "a=%41+b&=&&user=%ff", "user=%", "us%65r=a=b&user=c", "user=a;b", "%75ser=%e2%82%ac\xff",
		"user=a&++++++++++++++++user=b", "user%00x=a&user=b", "user[x]=a&user=b", "user[=a", "user.x=a&%20user+x",
	} {
		f.Add([]byte(body), "user")
	}
	f.Add([]byte("&&a=b"), "") // nothing between two & is no field
	f.Fuzz(func(t *testing.T, body []byte, field string) {
		before := bytes.Clone(body)
		value, ok, err := formvalue.URLEncoded(body, field, maxValue)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		fields, wantErr := url.ParseQuery(string(body))
		if (err == nil) != (wantErr == nil) && err != formvalue.ErrAmbiguous && err != formvalue.ErrTooLong {
			t.Fatalf("%q: the error is %v, net/url says %v", body, err, wantErr)
		}
		if err != nil {
			return
		}
		want, wantOK, count := "", false, 0
		for name, values := range fields {
			if valid(name) == field {
				want, wantOK, count = valid(values[0]), true, count+len(values)
			}
		}
		if value != want || ok != wantOK || count > 1 {
			t.Fatalf("%q: the field %q is %q, %v, net/url says %q, %v", body, field, value, ok, want, wantOK)
		}
	})
}

// valid replaces each invalid byte by U+FFFD.
func valid(text string) string { return string([]rune(text)) }
