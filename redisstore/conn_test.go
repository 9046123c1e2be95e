package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

func TestNoUnixSocket(t *testing.T) {
	t.Parallel()
	server := redistest.StartUnix(t)
	_, err := open(t, redisstore.Options{Address: "unix://:SECRET@" + server.Addr + ".not?db=2"}).Take(context.Background(), request(t, "k"))
	wantReason(t, "no socket", err, store.ReasonConnection, "SECRET")
}

// The parts of a unix URL become the right options.
func TestUnixURL(t *testing.T) {
	t.Parallel()
	server := redistest.StartUnix(t, "--requirepass", "p@ss")
	s := open(t, redisstore.Options{Address: "unix://default:p%40ss@" + server.Addr + "?db=3", KeyPrefix: "p"})
	if _, err := s.Take(context.Background(), request(t, "k")); err != nil {
		t.Fatal(err)
	}
	conn := server.Client.Conn()
	defer conn.Close()
	conn.Auth(context.Background(), "p@ss")
	conn.Select(context.Background(), 3)
	if n := conn.DBSize(context.Background()).Val(); n != 1 {
		t.Errorf("%d keys in database 3, want 1", n)
	}
	_, err := open(t, redisstore.Options{Address: server.Addr, Password: "SECRET"}).Take(context.Background(), request(t, "k"))
	wantReason(t, "wrong password", err, store.ReasonPermission, "SECRET")
}

// read returns the certificates as options of a store.
func read(t testing.TB, c redistest.Certificates) redisstore.TLS {
	t.Helper()
	text := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
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
		"ca holds no certificate":                           {CA: right.Key},
		"cert and key are no pair":                          {Cert: right.Cert, Key: other.Key},
		"cert and key are no pair in PEM form: tls: failed": {Cert: right.Cert},
	} {
		_, err := redisstore.New(redisstore.Options{Address: "h:1", TLS: settings}, redisstore.Hooks{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A Redis that becomes a replica fails, and its connections are closed. The next request resolves
// the address again.
func TestDemoted(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	server, master := redistest.Start(t), redistest.Start(t)
	ctx := context.Background()
	s := open(t, redisstore.Options{Address: server.Addr})
	connections := func() (ids string) {
		for line := range strings.Lines(server.Client.ClientList(ctx).Val()) {
			if strings.Contains(line, "cmd=evalsha") || strings.Contains(line, "cmd=script") {
				ids += strings.Fields(line)[0] + " "
			}
		}
		return ids
	}
	charged := request(t, "k")
	if _, err := s.Take(ctx, charged); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(master.Addr)
	for name, call := range map[string]func() error{
		"take":   func() error { _, err := s.Take(ctx, request(t, "k")); return err },
		"refund": func() error { return refund(s, charged, 1) },
		"check":  func() error { return s.Check(ctx) },
	} {
		server.Client.ReplicaOf(ctx, "no", "one")
		if _, err := s.Take(ctx, charged); err != nil {
			t.Fatal(name, err)
		}
		before := connections()
		server.Client.ReplicaOf(ctx, host, port)
		wantReason(t, name, call(), store.ReasonReply)
		redistest.WaitForState(t, name+": the connections "+before+"to a demoted primary to close", func() (any, bool) {
			after := connections()
			return after, before != "" && !strings.Contains(after, before)
		})
	}
}

// endless returns a request that is always allowed and charged.
func endless(t testing.TB, key string) store.Request {
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 1_000_000, Window: 1_000_000})
	return store.Request{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}
}

// instance takes from a store continuously, and records the results.
type instance struct {
	store store.Store

	mu      sync.Mutex
	errors  int
	last    error
	failed  time.Time
	longest time.Duration
}

func (i *instance) run(t *testing.T, key string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Millisecond): // a client asks 500 times a second
		}
		began := time.Now()
		_, err := i.store.Take(context.Background(), []store.Request{endless(t, key)})
		i.mu.Lock()
		if i.longest = max(i.longest, time.Since(began)); err != nil {
			i.errors, i.last, i.failed = i.errors+1, err, time.Now()
		}
		i.mu.Unlock()
	}
}

func (i *instance) seen() (errors int, failed time.Time, last error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.errors, i.failed, i.last
}

// forget clears the results, and returns how long the longest take took.
func (i *instance) forget() (longest time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	longest, i.longest, i.errors = i.longest, 0, 0
	return longest
}

// Each of several instances finds the new primary, with or without a breaker, and no request waits
// longer than the timeout.
func TestSentinel(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	trio := redistest.StartTrio(t, "theirs")
	const timeout = 2 * time.Second
	options := redisstore.Options{
		Address: strings.Join(trio.Addrs(), ","), MasterName: redistest.Master, SentinelPassword: trio.Password, Timeout: timeout,
	}
	var instances []*instance
	var running sync.WaitGroup
	stop := make(chan struct{})
	defer running.Wait()
	defer close(stop)
	for n := range 4 {
		s := open(t, options)
		i := &instance{store: s}
		if n >= 2 {
			b := store.NewBreaker(s, nil)
			defer b.Close()
			i.store = b
		}
		instances = append(instances, i)
		running.Go(func() { i.run(t, fmt.Sprint("instance ", n), stop) })
	}
	// recovered waits until all instances charge the new primary and nothing has failed for a
	// while, and logs when each failed last.
	recovered := func(what string, began time.Time, master *redistest.Server) {
		t.Helper()
		for n, i := range instances {
			key := fmt.Sprintf("caddy_rl:{instance %d}:%s", n, endless(t, "").Limits[0].ID)
			before := ""
			redistest.WaitForState(t, fmt.Sprintf("%s: instance %d to recover", what, n), func() (any, bool) {
				charged := master.Client.Get(t.Context(), key).Val()
				isCharged := before != "" && charged != before
				before = charged
				_, failed, last := i.seen()
				return last, isCharged && time.Since(failed) > time.Second && time.Since(began) > time.Second &&
					strings.Contains(master.Client.Info(t.Context(), "replication").Val(), "role:master")
			})
			errors, failed, last := i.seen()
			longest := i.forget()
			t.Logf("%s: instance %d failed last after %v (%d times), longest request %v, last error: %v",
				what, n, max(0, failed.Sub(began)).Round(time.Millisecond), errors, longest.Round(time.Millisecond), last)
			if longest > timeout+slack {
				t.Errorf("%s: a request of instance %d waited for %v, it may for %v", what, n, longest, timeout)
			}
		}
	}
	old, next := trio.Roles(t)
	recovered("start", time.Now(), old)

	began := time.Now()
	trio.Failover(t)
	recovered("failover", began, next)
	old, next = trio.Roles(t)

	began = time.Now()
	old.Kill(t)
	recovered("kill", began, next)
}

// slack is for a machine that is busy with other tests.
const slack = 10 * time.Second

// A Sentinel that is down, hangs or is wrong does not keep a store from using the others. Wrong
// settings lead to errors with the right reason and without secrets.
func TestSentinelSettings(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	trio := redistest.StartTrio(t, "right")
	addrs := strings.Join(trio.Addrs(), ",")
	docs, err := os.ReadFile("../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := regexp.MustCompile("`(\\+sentinel\\|[^`]*)`").FindSubmatch(docs)
	if listed == nil {
		t.Fatal("docs/redis.md lists no permissions")
	}
	trio.AddUser(t, "watcher", append([]string{"on", ">watching"}, strings.Fields(string(listed[1]))...)...)
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
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
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
	o := redisstore.Options{Address: addrs, MasterName: redistest.Master, SentinelPassword: "right", Timeout: 2 * time.Second}
	s := open(t, o)
	if _, err := s.Take(context.Background(), request(t, "k")); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "it to be told of a new master", func() bool { return subscribed() > 0 })
	before := subscribed()
	_ = s.Close()
	redistest.WaitForState(t, "the connections to Sentinels to close", func() (any, bool) {
		n := subscribed()
		return fmt.Sprint(n, " are open, and ", before, " before Close"), n < before
	})

	// One of two Sentinels is wrong. A store that asks this one doesn't stay with it, because a
	// failed check of a breaker asks again.
	misled := 0
	for range 8 {
		s := open(t, redisstore.Options{
			Address: trio.Misinformed(t).Addr + "," + trio.Addrs()[0], MasterName: redistest.Master, SentinelPassword: "right", Timeout: time.Second,
		})
		for deadline := time.Now().Add(patient); ; {
			_, err := s.Take(context.Background(), request(t, "k"))
			if err == nil {
				break
			}
			misled++
			_ = s.Check(context.Background())
			if time.Now().After(deadline) {
				t.Fatal("a store stays with a Sentinel that is wrong")
			}
		}
		_ = s.Close()
	}
	t.Logf("misled %d times", misled)

	// The Sentinel in use hangs, and the primary dies.
	s = open(t, o)
	if _, err := s.Take(context.Background(), request(t, "k")); err != nil {
		t.Fatal(err)
	}
	master, _ := trio.Roles(t)
	in := -1
	redistest.WaitFor(t, "a Sentinel to be in use", func() bool {
		in = slices.IndexFunc(trio.Sentinels, func(one *redistest.Server) bool { return strings.Contains(trio.Clients(t, one), "sub=2") })
		return in >= 0
	})
	trio.Sentinels[in].Freeze(t)
	began := time.Now()
	master.Kill(t)
	redistest.WaitForState(t, "a take to succeed", func() (any, bool) {
		asked := time.Now()
		_, err := s.Take(context.Background(), request(t, "k"))
		if waited := time.Since(asked); waited > o.Timeout+slack {
			t.Errorf("a request waited for %v", waited)
		}
		if err != nil {
			_ = s.Check(context.Background())
		}
		return err, err == nil
	})
	t.Logf("with a Sentinel that hangs: recovered after %v", time.Since(began).Round(time.Millisecond))
}
