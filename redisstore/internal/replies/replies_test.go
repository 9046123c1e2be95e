package replies

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// readsAll reports whether the scanner accepts a stream, whichever way it comes in parts.
func readsAll(t *testing.T, stream string) bool {
	t.Helper()
	var whole, parts replyScanner
	err := whole.scan([]byte(stream))
	for i := range stream {
		_ = parts.scan([]byte(stream[i : i+1]))
	}
	if fmt.Sprint(err) != fmt.Sprint(parts.err) || err == nil && whole.skip+whole.depth+parts.skip+parts.depth > 0 {
		t.Errorf("%.60q: %v as a whole, %v byte by byte, left %d %d, %d %d",
			stream, err, parts.err, whole.skip, whole.depth, parts.skip, parts.depth)
	}
	return err == nil
}

// Replies of Redis pass, in both versions of the protocol. Replies that announce too much don't, at any place.
func TestReplyBounds(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"+OK\r\n", "-ERR unknown\r\n", ":-5\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12345678901234567890\r\n",
		"$-1\r\n", "$0\r\n\r\n", "$12\r\n*9999999999\r\r\n", "=7\r\ntxt:abc\r\n", "!3\r\nERR\r\n",
		"*-1\r\n", "*0\r\n", "%0\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n", "~1\r\n_\r\n", ">2\r\n+a\r\n+b\r\n",
		strings.Repeat("*1\r\n", maxReplyDepth) + ":1\r\n",
	}
	for _, a := range allowed {
		for _, b := range allowed {
			if !readsAll(t, a+b) || !readsAll(t, "*2\r\n"+b+"%1\r\n+k\r\n:1\r\n"+a) && len(b) < 60 && len(a) < 60 {
				t.Errorf("%q before %q is denied", a, b)
			}
		}
		for _, denied := range redistest.Malformed {
			if readsAll(t, a+denied) || readsAll(t, "*2\r\n"+a+denied) {
				t.Errorf("%.60q after %q is allowed", denied, a)
			}
		}
	}
	large := "*3\r\n" + strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", maxReplyBytes/3, strings.Repeat("x", maxReplyBytes/3)), 2)
	for name, test := range map[string]struct {
		stream string
		want   bool
	}{
		"two large texts":         {large + ":1\r\n", true},
		"three large texts":       {large + fmt.Sprintf("$%d\r\n", maxReplyBytes/3), false},
		"as many values as may":   {fmt.Sprintf("*%d\r\n", maxReplyValues), true},
		"a list too long":         {fmt.Sprintf("*%d\r\n", maxReplyValues+1), false},
		"a map too long":          {fmt.Sprintf("%%%d\r\n", maxReplyValues/2+1), false},
		"lists too long together": {strings.Repeat(fmt.Sprintf("*%d\r\n", maxReplyValues/4), 5), false},
		"an endless line":         {"+" + strings.Repeat("x", maxReplyBytes+1), false},
		"an endless length":       {"$" + strings.Repeat("0", maxReplyBytes+1), false},
		"many replies":            {strings.Repeat("*2\r\n:1\r\n:2\r\n", maxReplyValues), true},
	} {
		if err := new(replyScanner).scan([]byte(test.stream)); (err == nil) != test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
