package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The parts of a unix URL become the right options.
func TestUnixURL(t *testing.T) {
	t.Parallel()
	server := redistest.StartUnix(t, "--requirepass", "p@ss")
	s := open(t, redisstore.Options{Address: "unix://default:p%40ss@" + server.Addr + "?db=3", KeyPrefix: "p"})
	errtest.None(t, errtest.Of(s.Take(context.Background(), request(t, "k"))))
	conn := server.Client.Conn()
	defer conn.Close()
	conn.Auth(context.Background(), "p@ss")
	conn.Select(context.Background(), 3)
	if n := conn.DBSize(context.Background()).Val(); n != 1 {
		t.Errorf("%d keys in database 3, want 1", n)
	}
	_, err := open(t, redisstore.Options{Address: server.Addr, Password: "SECRET"}).Take(context.Background(), request(t, "k"))
	wantReason(t, "wrong password", err, store.ReasonPermission, "SECRET")
	_, err = open(t, redisstore.Options{Address: "unix://:SECRET@" + server.Addr + ".not?db=2"}).Take(context.Background(), request(t, "k"))
	wantReason(t, "no socket", err, store.ReasonConnection, "SECRET")
}

// read returns the certificates as options of a store.
func read(t testing.TB, c redistest.Certificates) redisstore.TLS {
	t.Helper()
	text := func(file string) string {
		b, err := os.ReadFile(file)
		errtest.None(t, err)
		return string(b)
	}
	return redisstore.TLS{CA: text(c.CA), Cert: text(c.Cert), Key: text(c.Key)}
}

// wantReason checks the reason of an error, and that its text holds no secret.
func wantReason(t *testing.T, of string, err error, reason string, secrets ...string) {
	t.Helper()
	var failed *store.Error
	if !errors.As(err, &failed) || failed.Reason != reason {
		t.Errorf("%s: error %v, want one with reason %s", of, err, reason)
	}
	for _, secret := range append(secrets, "BEGIN") {
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("%s: a secret is in the error %v", of, err)
		}
	}
}

// Only a Redis with the right certificate is used, and only clients with the right certificate can
// log in.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificates, others := redistest.NewCertificates(t), redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certificates, "--requirepass", "right")
	right, other := read(t, certificates), read(t, others)
	_, port, _ := net.SplitHostPort(server.Addr)
	tests := []struct {
		name     string
		address  string
		tls      redisstore.TLS
		password string
		reason   string // "" for none
	}{
		{"all is right", server.Addr, right, "right", ""},
		{"URL", "rediss://:right@" + server.Addr + "/1", right, "", ""},
		{"server name", server.Addr, redisstore.TLS{CA: right.CA, Cert: right.Cert, Key: right.Key, ServerName: "redis.internal"}, "right", ""},
		{"unverified", server.Addr, redisstore.TLS{InsecureSkipVerify: true, Cert: right.Cert, Key: right.Key}, "right", ""},
		{"wrong CA", server.Addr, redisstore.TLS{CA: other.CA, Cert: right.Cert, Key: right.Key}, "right", store.ReasonConnection},
		{"the system's CAs", server.Addr, redisstore.TLS{Cert: right.Cert, Key: right.Key}, "right", store.ReasonConnection},
		{"no client certificate", server.Addr, redisstore.TLS{CA: right.CA}, "right", store.ReasonConnection},
		{"client certificate of another authority", server.Addr, redisstore.TLS{CA: right.CA, Cert: other.Cert, Key: other.Key}, "right", store.ReasonConnection},
		{"wrong server name", server.Addr, redisstore.TLS{CA: right.CA, Cert: right.Cert, Key: right.Key, ServerName: "redis.example"}, "right", store.ReasonConnection},
		{"host that the certificate doesn't name", "localhost:" + port, right, "right", store.ReasonConnection},
		{"without TLS", server.Addr, redisstore.TLS{}, "right", store.ReasonConnection},
		{"wrong password", server.Addr, right, "SECRET", store.ReasonPermission},
		{"nobody there", "127.0.0.1:" + redistest.FreePort(t), right, "right", store.ReasonConnection},
	}
	for _, test := range tests {
		_, err := open(t, redisstore.Options{Address: test.address, TLS: test.tls, Password: test.password}).Take(context.Background(), request(t, "k"))
		if test.reason == "" && err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if test.reason != "" {
			wantReason(t, test.name, err, test.reason, "right", "SECRET")
		}
	}
	for want, settings := range map[string]redisstore.TLS{
		"ca holds no certificate":                              {CA: right.Key},
		"cert and key are not a pair":                          {Cert: right.Cert, Key: other.Key},
		"cert and key are not a pair in PEM form: tls: failed": {Cert: right.Cert},
	} {
		_, err := redisstore.New(redisstore.Options{Address: "h:1", TLS: settings}, redisstore.Hooks{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A Sentinel that is down does not keep a store from using the others. Wrong settings lead to errors with the right
// reason and without secrets.
func TestSentinelSettings(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	trio := redistest.StartTrio(t, "right", redistest.NoFailover)
	addrs := strings.Join(trio.Addrs(), ",")
	trio.AddUser(t, "watcher", append([]string{"on", ">watching"}, documentedRules(t, "`(\\+sentinel\\|[^`]*)`")...)...)
	for _, test := range []struct {
		name    string
		options redisstore.Options
		reason  string
	}{
		{"all is right", redisstore.Options{Address: addrs, SentinelPassword: "right"}, ""},
		{"one of two is gone", redisstore.Options{Address: "127.0.0.1:" + redistest.FreePort(t) + ", " + trio.Addrs()[1], SentinelPassword: "right"}, ""},
		{"user", redisstore.Options{Address: addrs, SentinelUsername: "watcher", SentinelPassword: "watching"}, ""},
		{"wrong password", redisstore.Options{Address: addrs, SentinelPassword: "SECRET"}, store.ReasonPermission},
		{"no password", redisstore.Options{Address: addrs}, store.ReasonPermission},
		{"password of Redis", redisstore.Options{Address: addrs, SentinelPassword: "right", Username: "none", Password: "SECRET"}, store.ReasonPermission},
		{"unknown master", redisstore.Options{Address: addrs, SentinelPassword: "right", MasterName: "another"}, store.ReasonReply},
		{"no Sentinel", redisstore.Options{Address: "127.0.0.1:" + redistest.FreePort(t)}, store.ReasonConnection},
	} {
		if test.options.MasterName == "" {
			test.options.MasterName = redistest.Master
		}
		s := open(t, test.options)
		_, err := s.Take(context.Background(), request(t, "k"))
		if test.reason == "" {
			errtest.Report(t, err, test.name)
			_ = s.Close() // or its Sentinel counts as in use below
		} else {
			wantReason(t, test.name, err, test.reason, "right", "SECRET")
		}
	}

	// Closing closes the connections to Sentinels, too.
	subscribed := func() (n int) {
		for _, one := range trio.Sentinels {
			n += strings.Count(trio.Clients(t, one), "sub=2")
		}
		return n
	}
	s := open(t, redisstore.Options{Address: addrs, MasterName: redistest.Master, SentinelPassword: "right"})
	errtest.None(t, errtest.Of(s.Take(context.Background(), request(t, "k"))))
	redistest.WaitFor(t, "it to hear of a new primary", func() bool { return subscribed() > 0 })
	before := subscribed()
	_ = s.Close()
	redistest.WaitForState(t, "the connections to Sentinels to close", func() (any, bool) {
		n := subscribed()
		return fmt.Sprint(n, " are open, and ", before, " before Close"), n < before
	})
}
