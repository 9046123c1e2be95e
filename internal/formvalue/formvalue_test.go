package formvalue_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/formvalue"
)

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
		{body: "user=alice&user=bob", field: "user", want: "alice", ok: true},
		{body: "user=&user=bob", field: "user", ok: true},
		{body: "User=bob", field: "user"},
		{body: "users=bob", field: "user"},
		{body: "us%65r=al%69ce+b%2Bc%26", field: "user", want: "alice b+c&", ok: true},
		{body: "first+name=a=b", field: "first name", want: "a=b", ok: true},
		{body: "user=alice;user=bob", field: "user", want: "alice;user=bob", ok: true},
		{body: "user=%C3%A9%c3%a9", field: "user", want: "éé", ok: true},
		{body: "user=%ff%FE\xe2\x82", field: "user", want: "\ufffd\ufffd\ufffd\ufffd", ok: true},
		{body: "u\xff=x", field: "u\ufffd", want: "x", ok: true},
		{body: "user=a\x00b%00", field: "user", want: "a\x00b\x00", ok: true},
	} {
		value, ok, err := formvalue.URLEncoded([]byte(test.body), test.field)
		if value != test.want || ok != test.ok || err != nil {
			t.Errorf("%q: the field %q is %q, %v, %v, want %q, %v", test.body, test.field, value, ok, err, test.want, test.ok)
		}
	}
}

// TestURLEncodedRejectsInvalidEscapes checks that they are found in other fields, and behind the field.
func TestURLEncodedRejectsInvalidEscapes(t *testing.T) {
	for _, body := range []string{
		"user=%", "user=%4", "user=%4&x=1", "user=%zz", "user=%4g", "user=a&other=%", "%=1&user=a", "user=a&user=%x1", "user=%%41",
	} {
		if value, ok, err := formvalue.URLEncoded([]byte(body), "user"); value != "" || ok || err != formvalue.ErrEscape {
			t.Errorf("%q: got %q, %v, %v", body, value, ok, err)
		}
	}
}

// FuzzURLEncoded compares URLEncoded with net/url, which reports semicolons as errors.
func FuzzURLEncoded(f *testing.F) {
	for _, body := range []string{"user=alice&x=1", "user", "a=%41+b&=&&user=%ff", "user=%", "us%65r=a=b&user=c", "user=a;b", "%75ser=%e2%82%ac\xff"} {
		f.Add([]byte(body), "user")
	}
	f.Add([]byte("&&a=b"), "") // nothing between two & is no field
	f.Fuzz(func(t *testing.T, body []byte, field string) {
		before := bytes.Clone(body)
		value, ok, err := formvalue.URLEncoded(body, field)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		fields, wantErr := url.ParseQuery(strings.ReplaceAll(string(body), ";", "%3b"))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: the error is %v, net/url says %v", body, err, wantErr)
		}
		if err != nil {
			return
		}
		if !isUnique(fields, field) {
			return
		}
		want, wantOK := "", false
		for name, values := range fields {
			if valid(name) == field {
				want, wantOK = valid(values[0]), true
			}
		}
		if value != want || ok != wantOK {
			t.Fatalf("%q: the field %q is %q, %v, net/url says %q, %v", body, field, value, ok, want, wantOK)
		}
	})
}

// isUnique reports whether at most one name of the fields is the field, after invalid UTF-8 was replaced. The order of
// fields with different names is lost in url.Values.
func isUnique(fields url.Values, field string) bool {
	count := 0
	for name := range fields {
		if valid(name) == field {
			count++
		}
	}
	return count <= 1
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
		"no field":                   {body: form(part(`form-data; name="other"`, "x"))},
		"the field":                  {body: form(part(`form-data; name="other"`, "x"), user), want: "alice", ok: true},
		"an empty field":             {body: form(part(`form-data; name="user"`, ""), user), ok: true},
		"the first field counts":     {body: form(user, part(`form-data; name="user"`, "bob")), want: "alice", ok: true},
		"the case of names":          {body: form(part(`form-data; name="User"`, "bob"), user), want: "alice", ok: true},
		"a file":                     {body: form(part(`form-data; name="user"; filename="f"`, "bob"))},
		"a file before the field":    {body: form(part(`form-data; name="user"; filename="f"`, "bob"), user), want: "alice", ok: true},
		"a file of another encoding": {body: form(part(`form-data; name="user"; filename*=UTF-8''f`, "bob"), user), want: "alice", ok: true},
		"an empty file name":         {body: form(part(`form-data; name="user"; filename=""`, "bob"), user), want: "bob", ok: true},
		"an attachment":              {body: form(part(`attachment; name="user"`, "bob"), user), want: "alice", ok: true},
		"a part without a name":      {body: form(part(`form-data`, "bob"), "\r\nbob", user), want: "alice", ok: true},
		"a charset": {
			body: form("Content-Type: text/plain; charset=utf-16\r\n" + user), want: "alice", ok: true,
		},
		"quoted-printable": {
			body: form("Content-Transfer-Encoding: quoted-printable\r\n" + part(`form-data; name="user"`, "al=69ce")), want: "alice", ok: true,
		},
		"lines in a field":    {body: form(part(`form-data; name="user"`, "a\r\n--c\r\nb\r\n")), want: "a\r\n--c\r\nb\r\n", ok: true},
		"invalid UTF-8":       {body: form(part(`form-data; name="user"`, "a\xff\xfe")), want: "a\ufffd\ufffd", ok: true},
		"text before":         {body: append([]byte("hello\r\n"), form(user)...), want: "alice", ok: true},
		"text after":          {body: append(form(user), "--b\r\nhello"...), want: "alice", ok: true},
		"1000 parts":          {body: form(append(many(999), user)...), want: "alice", ok: true},
		"a body with no part": {body: []byte("--b--\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			value, ok, err := formvalue.Multipart(test.body, "b", "user")
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
			if value, ok, err := formvalue.Multipart(body, "b", "user"); value != "" || ok || err == nil {
				t.Errorf("got %q, %v, %v, want an error", value, ok, err)
			}
		})
	}
	if _, _, err := formvalue.Multipart(complete, "", "user"); err == nil {
		t.Error("an empty boundary was accepted")
	}
}

// FuzzMultipart compares Multipart with the form that mime/multipart reads from the whole body.
func FuzzMultipart(f *testing.F) {
	user := part(`form-data; name="user"`, "alice")
	for _, body := range [][]byte{
		form(user), form(part(`form-data; name="user"; filename="f"`, "x"), user), form(user, user), form("\r\nx", user),
		form("Content-Transfer-Encoding: quoted-printable\r\n" + user), form(user)[:40],
		{},
	} {
		f.Add(body, "b", "user")
	}
	f.Add(form(part("form-data", "alice")), "b", "") // a part without a name is no field
	f.Fuzz(func(t *testing.T, body []byte, boundary, field string) {
		value, ok, err := formvalue.Multipart(body, boundary, field)
		want, wantErr := multipart.NewReader(bytes.NewReader(body), boundary).ReadForm(1 << 20)
		if wantErr != nil {
			// ReadForm also decodes the fields and files that Multipart skips, and its memory has other bounds.
			return
		}
		defer want.RemoveAll()          //nolint:errcheck // the test is over
		if err == io.ErrUnexpectedEOF { // ReadForm accepts a body that ends in the headers of a part
			return
		}
		if err != nil {
			t.Fatalf("%q: %v, but mime/multipart reads the form", body, err)
		}
		values := want.Value[field]
		if ok != (len(values) > 0) || ok && value != valid(values[0]) {
			t.Fatalf("%q: the field %q is %q, %v, mime/multipart says %q", body, field, value, ok, values)
		}
	})
}
