package formvalue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/url"
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
		body := form(part("form-data; name="+other, other), part("form-data; name=user", text))
		if value, ok, err := formvalue.Multipart(body, "b", "user", maxValue); err != want || ok == tooLong || ok && value != valid(text) {
			t.Errorf("%d bytes: %d, %v, %v", len(text), len(value), ok, err)
		}
	}
}

// TestNamesOfPHP checks the names that PHP reads as the field, beside the field and alone, in both encodings.
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
			if strings.ContainsAny(test.other, "\x00\t") || strings.Contains(test.field, "\ufffd") {
				return // not in a header field
			}
			parts := make([]string, len(names))
			for i, name := range names {
				parts[i] = part(`form-data; name="`+name+`"`, "bob")
			}
			got, ok, err := formvalue.Multipart(form(parts...), "b", test.field, maxValue)
			if err != want || ok != (err == nil && len(names) > 1) || ok != (got == "bob") {
				t.Errorf("%.40q with the field %q in a part, %s: %q, %v, %v, want %v", test.other, test.field, what, got, ok, err, want)
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
		if (err == nil) != (wantErr == nil) && err != formvalue.ErrAmbiguous {
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

// form is a multipart body with the boundary "b". Each part is its headers, an empty line, and its content.
func form(parts ...string) []byte {
	var body strings.Builder
	for _, part := range parts {
		body.WriteString("--b\r\n" + part + "\r\n")
	}
	body.WriteString("--b--\r\n")
	return []byte(body.String())
}

func part(disposition, content string) string {
	return "Content-Disposition: " + disposition + "\r\n\r\n" + content
}

func TestMultipart(t *testing.T) {
	user := part(`form-data; name="user"`, "alice")
	for name, test := range map[string]struct {
		body []byte
		want string
		ok   bool
	}{
		"no field":               {body: form(part(`form-data; name="other"`, "x"))},
		"the field":              {body: form(part(`form-data; name="other"`, "x"), user), want: "alice", ok: true},
		"an empty field":         {body: form(part(`form-data; name="user"`, "")), ok: true},
		"another field twice":    {body: form(append(many(2), user)...), want: "alice", ok: true},
		"the case of names":      {body: form(part(`form-data; name="User"`, "bob"), user), want: "alice", ok: true},
		"a file":                 {body: form(part(`form-data; name="user"; filename="f"`, "bob"))},
		"a file with two names":  {body: form(part(`form-data; name="user"; filename="f"; filename*=UTF-8''f`, "bob"))},
		"a file of another name": {body: form(part(`form-data; name="x"; filename*=UTF-8''f`, "bob"), user), want: "alice", ok: true},
		"no quotation marks":     {body: form(part(`Form-Data;name=user`, "alice")), want: "alice", ok: true},
		"a type": {
			body: form("content-type: Text/Plain; charset=UTF-8\r\n" + part(`form-data; name="user"`, "\u00e9")), want: "\u00e9", ok: true,
		},
		"another charset, without its letters": {
			body: form("Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n" + user), want: "alice", ok: true,
		},
		"other encodings of other fields": {
			body: form("Content-Transfer-Encoding: base64\r\n"+part(`form-data; name="x"`, "eA=="), user), want: "alice", ok: true,
		},
		"a mark within text":  {body: form(part(`form-data; name="user"`, "a\ufeffb")), want: "a\ufeffb", ok: true},
		"a mark in a file":    {body: form(part(`form-data; name="user"; filename="f"`, "\ufeffbob"))},
		"lines in a field":    {body: form(part(`form-data; name="user"`, "a\r\n--c\r\nb\r\n")), want: "a\r\n--c\r\nb\r\n", ok: true},
		"invalid UTF-8":       {body: form(part(`form-data; name="user"`, "a\xff\xfe")), want: "a\ufffd\ufffd", ok: true},
		"a line before":       {body: append([]byte("\r\n"), form(user)...), want: "alice", ok: true},
		"lines after":         {body: append(form(user), "\r\n"...), want: "alice", ok: true},
		"1000 parts":          {body: form(append(many(999), user)...), want: "alice", ok: true},
		"a body with no part": {body: []byte("--b--\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			value, ok, err := formvalue.Multipart(test.body, "b", "user", maxValue)
			if value != test.want || ok != test.ok || err != nil {
				t.Errorf("got %q, %v, %v, want %q, %v", value, ok, err, test.want, test.ok)
			}
		})
	}
}

// many returns parts that are not the field "user".
func many(n int) []string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = part(`form-data; name="x"`, "")
	}
	return parts
}

func TestMultipartRejects(t *testing.T) {
	user := part(`form-data; name="user"`, "alice")
	complete := form(user)
	for name, body := range map[string][]byte{
		"an empty body":                 {},
		"another boundary":              bytes.ReplaceAll(complete, []byte("--b"), []byte("--c")),
		"no last boundary":              bytes.TrimSuffix(complete, []byte("--b--\r\n")),
		"an incomplete last boundary":   bytes.TrimSuffix(complete, []byte("-\r\n")),
		"an incomplete field":           complete[:len(complete)-12],
		"an incomplete header":          []byte("--b\r\nContent-Disposition: form-data; name=\"user\""),
		"a header without a colon":      form(user, "hello\r\n\r\n"),
		"an invalid quoted-printable":   form("Content-Transfer-Encoding: quoted-printable\r\n" + part(`form-data; name="user"`, "\x01")),
		"1001 parts":                    form(append(many(1000), user)...),
		"an incomplete part afterwards": append(bytes.TrimSuffix(complete, []byte("--\r\n")), "\r\n"+user...),
	} {
		t.Run(name, func(t *testing.T) {
			if value, ok, err := formvalue.Multipart(body, "b", "user", maxValue); value != "" || ok || err == nil {
				t.Errorf("got %q, %v, %v, want an error", value, ok, err)
			}
		})
	}
	for _, boundary := range []string{"", "b,b", "b b", `b"`, strings.Repeat("b", 71)} {
		body := bytes.ReplaceAll(complete, []byte("--b"), []byte("--"+boundary))
		if _, _, err := formvalue.Multipart(body, boundary, "user", maxValue); err == nil {
			t.Errorf("the boundary %q was accepted", boundary)
		}
	}
}

// A client must not be able to show one value to this package and another one to a parser that reads these
// bodies in another way.
func TestMultipartRejectsAmbiguousBodies(t *testing.T) {
	user := part(`form-data; name="user"`, "alice")
	before := func(header string) []byte { return form(header+"\r\n"+part(`form-data; name="user"`, "bob"), user) }
	disposition := func(text string) []byte { return form(part(text, "bob"), user) }
	for name, body := range map[string][]byte{
		"a field twice":                form(user, part(`form-data; name="user"`, "bob")),
		"an empty field first":         form(part(`form-data; name="user"`, ""), user),
		"a file and a field":           form(part(`form-data; name="user"; filename="f"`, "bob"), user),
		"text before":                  append([]byte("hello\r\n"), form(user)...),
		"another body before":          append([]byte("--b\n"+part(`form-data; name="user"`, "bob")+"\n"), form(user)...),
		"a body of LF":                 bytes.ReplaceAll(form(user), []byte("\r\n"), []byte("\n")),
		"text after":                   append(form(user), "--b\r\nhello"...),
		"text behind the last":         bytes.Replace(form(user), []byte("--b--"), []byte("--b-- x"), 1),
		"a space behind a boundary":    []byte("--b\r\n" + part(`form-data; name="x"`, "\r\n--b \r\n"+part(`form-data; name="user"`, "bob")+"\r\n--b\r\n"+user+"\r\n--b--\r\n")),
		"a boundary within a line":     form(part(`form-data; name="x"`, "x--b"), user),
		"a boundary after LF":          form(part(`form-data; name="x"`, "x\n--b\r\n"+user), user),
		"a longer boundary":            form(part(`form-data; name="x"`, "x\r\n--bb\r\n"+user), user),
		"an attachment":                disposition(`attachment; name="user"`),
		"no name":                      disposition(`form-data`),
		"no disposition":               form("X: y\r\n\r\nbob", user),
		"no header":                    form("\r\nbob", user),
		"two names":                    disposition(`form-data; name="user"; name="x"`),
		"an encoded name":              disposition(`form-data; name*=UTF-8''user`),
		"a name in pieces":             disposition(`form-data; name*0="us"; name*1="er"`),
		"a name of RFC 2047":           disposition(`form-data; name="=?utf-8?q?user?="`),
		"a name with a backslash":      disposition(`form-data; name="us\er"`),
		"a quotation mark in a name":   disposition(`form-data; name="x"; filename="x\";name=user;y="`),
		"an empty file name":           disposition(`form-data; name="user"; filename=""`),
		"an encoded file name":         disposition(`form-data; name="user"; filename*=UTF-8''f`),
		"a broken disposition":         disposition(`form-data; name="user" x`),
		"two dispositions":             before(`Content-Disposition: form-data; name="x"`),
		"a disposition on two lines":   form("Content-Disposition: form-data;\r\n name=\"user\"\r\n\r\nbob", user),
		"a space before the colon":     form("Content-Disposition : form-data; name=\"user\"\r\n\r\nbob", user),
		"a long header":                before("X: " + strings.Repeat("x", 9000)),
		"quoted-printable":             before("Content-Transfer-Encoding: quoted-printable"),
		"base64":                       before("Content-Transfer-Encoding: Base64"),
		"a charset":                    before("Content-Type: text/plain; charset=utf-7"),
		"letters of another charset":   form("Content-Type: text/plain; charset=iso-8859-1\r\n" + part(`form-data; name="user"`, "\xe9")),
		"a byte order mark":            form(part(`form-data; name="user"`, "\ufeffbob")),
		"a byte order mark alone":      form(part(`form-data; name="user"`, "\ufeff"), user),
		"a mark before a name":         disposition("form-data; name=\"\ufeffuser\""),
		"a type that looks like files": before("Content-Type: application/octet-stream"),
		"parts within a part":          form("Content-Type: multipart/mixed; boundary=c\r\n"+part(`form-data; name="x"`, "--c--"), user),
	} {
		t.Run(name, func(t *testing.T) {
			if value, ok, err := formvalue.Multipart(body, "b", "user", maxValue); value != "" || ok || err == nil {
				t.Errorf("got %q, %v, %v, want an error", value, ok, err)
			}
		})
	}
}

// FuzzMultipart compares Multipart with the form that mime/multipart reads from the whole body. That accepts
// more bodies.
func FuzzMultipart(f *testing.F) {
	user := part(`form-data; name="user"`, "alice")
	for _, body := range [][]byte{
		form(user), form(part(`form-data; name="user"; filename="f"`, "x"), user), form(user, user), form("\r\nx", user),
		form(user, part(`form-data; name=" user"`, "x")), form(part(`form-data; name="user[]"`, "x"), user),
		form("Content-Transfer-Encoding: 8bit\r\nContent-Type: text/plain\r\n" + user), form(user)[:40],
		{},
	} {
		f.Add(body, "b", "user")
	}
	f.Add(form(part("form-data", "alice")), "b", "") // a part without a name is no field
	f.Fuzz(func(t *testing.T, body []byte, boundary, field string) {
		value, ok, err := formvalue.Multipart(body, boundary, field, maxValue)
		if err != nil {
			return
		}
		want, err := multipart.NewReader(bytes.NewReader(body), boundary).ReadForm(1 << 20)
		if errors.Is(err, io.EOF) && !ok { // a form without parts
			return
		}
		if err != nil {
			t.Fatalf("%q: %v, but the field %q is %q, %v", body, err, field, value, ok)
		}
		defer want.RemoveAll() //nolint:errcheck // the test is over
		values := want.Value[field]
		if ok != (len(values) > 0) || ok && value != valid(values[0]) {
			t.Fatalf("%q: the field %q is %q, %v, mime/multipart says %q", body, field, value, ok, values)
		}
	})
}
