package simredis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// connect returns a client of a simulated Redis.
func connect(n *simredis.Network, address string, delay time.Duration) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, Dialer: n.NewClient(delay).DialContext, DisableIdentity: true, MaxRetries: -1})
}

// givesBack is a cluster, which can't decide keys of several slots in one step.
type givesBack struct{ *redisstore.Cluster }

// GivesBack implements [storetest.GivesBack].
func (givesBack) GivesBack() {}

// The store in a cluster of simulated Redis servers decides all that stores are tested with as the functions in Go do.
func TestConforms(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store {
		n := simredis.NewNetwork()
		o := redisstore.Options{Address: "10.0.0.1:6379", Timeout: 30 * time.Second, Dialer: n.NewClient(0), Cluster: true}
		for _, node := range n.NewCluster(o.Address, "10.0.0.2:6379", "10.0.0.3:6379").Nodes {
			node.SetScriptTime(0, 0)
		}
		s, err := redisstore.NewCluster(o, redisstore.Hooks{})
		errtest.None(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return givesBack{s}
	})
}

// startBoth starts a real Redis and a simulated one. It returns a function that runs a script in both, and fails unless
// both reply the same.
func startBoth(t *testing.T) func(script string) {
	server := redistest.Start(t)
	n := simredis.NewNetwork()
	n.NewServer("10.0.0.1:6379")
	simulated := connect(n, "10.0.0.1:6379", 0)
	t.Cleanup(func() { _ = simulated.Close() })
	return func(script string) {
		t.Helper()
		ctx := context.Background()
		want, err := server.Client.Eval(ctx, script, nil).Result()
		if err != nil {
			t.Fatalf("%v\n%s", err, script)
		}
		got, err := simulated.EvalSha(ctx, simulated.ScriptLoad(ctx, script).Val(), nil).Result()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q, Redis %q; %v\n%s", got, want, err, script)
		}
	}
}

// A script of random commands has the same replies from the simulated Redis and from a real one.
func TestLikeRedis(t *testing.T) {
	runInBoth := startBoth(t)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 30))
		key := func() string { return fmt.Sprint("k", r.IntN(4)) }
		number := func() string { return fmt.Sprint(r.IntN(70)) }
		text := func() string { return strings.Repeat(fmt.Sprint(r.IntN(10)), r.IntN(40)) }
		var script strings.Builder
		script.WriteString("local all = {}\n")
		call := func(args ...string) {
			fmt.Fprintf(&script, "local r = redis.pcall('%s')\nall[#all + 1] = type(r) == 'table' and r.ok or r or 'none'\n", strings.Join(args, "', '"))
		}
		for range 1 + r.IntN(12) {
			switch r.IntN(13) {
			case 0:
				call("SET", key(), text())
			case 1:
				call("SET", key(), text(), "NX", "PX", "100000")
			case 2:
				call("SET", key(), text(), "KEEPTTL")
			case 3:
				call("GET", key())
			case 4:
				fmt.Fprintf(&script, "for _, v in ipairs(redis.call('MGET', '%s', '%s', '%s')) do all[#all + 1] = v or 'none' end\n", key(), key(), key())
			case 5:
				call("EXISTS", key())
			case 6:
				call("SETRANGE", key(), number(), text())
			case 7:
				call("GETRANGE", key(), number(), number())
			case 8:
				call("STRLEN", key())
			case 9:
				k := key()
				call("BITOP", "OR", k, k)
			case 10:
				call("DEL", key())
			case 11:
				call("PEXPIRE", key(), "90000")
			case 12:
				fmt.Fprintf(&script, "all[#all + 1] = math.floor((redis.call('PTTL', '%s') + 5000) / 10000)\n", key())
			}
		}
		script.WriteString("return all")
		runInBoth(script.String())
	}
}

// Packing and unpacking give the same bytes and numbers as in a real Redis.
func TestPacksLikeRedis(t *testing.T) {
	runInBoth := startBoth(t)
	for _, expression := range []string{
		"struct.pack('<dddB', 1.5, -3, 2^52, 255)", "struct.pack('<I4c0', 5, 'hello')", "struct.pack('<i8i8', -1, 4503599627370495)",
		"struct.pack('<c16i8i8', '0123456789abcdef', 3, 9)", "struct.pack('<BI2I4I7I7', 7, 65535, 4294967295, 2^53, 0)",
		"{struct.unpack('<I7I2I4', '\\1\\255\\255\\0\\0\\0\\32\\255\\255\\255\\255\\255\\255')}", "{struct.unpack('<I4c0', '\\3\\0\\0\\0abcdef')}",
		"{struct.unpack('<i8', '\\255\\255\\255\\255\\255\\255\\255\\255')}", "{struct.unpack('<d', 'xx' .. struct.pack('<d', 77), 3)}",
		"{string.byte('abc', 1, 3)}", "{pcall(struct.unpack, '<d', 'short') and 1 or 0}",
	} {
		runInBoth("return " + expression)
	}
}

// Several names are assigned as in Lua.
func TestAssignsLikeRedis(t *testing.T) {
	runInBoth := startBoth(t)
	for _, script := range []string{
		"local a, b = 1, 2; a, b = b, a; return {a, b}",
		"local t, x = {}, 5; t.y, x = x, 0; return {t.y, x}",
		"local a, b, c = 1, 5, 10; a, b = c, b - a + c; return {a, b}",
		"local function f(a, b) if a then a, b = b, a end return a, b, 9 end local x, y, z = 1, 2; x, y, z = f(x, y); return {x, y, z}",
		"local t = {f = function(a, b) a, b = b, a; return a end}; while true do local a, b = 3, 4; a, b = b, a; return {a, b, t.f(1, 2)} end",
	} {
		runInBoth(script)
	}
}

// Connections break as those of TCP do.
func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simredis.NewNetwork()
		s := n.NewServer("10.0.0.1:6379")
		c := n.NewClient(10 * time.Millisecond)
		began := time.Now()
		took := func(what string, want time.Duration) {
			t.Helper()
			if got := time.Since(began); got != want {
				t.Errorf("%s after %v, want %v", what, got, want)
			}
			began = time.Now()
		}
		conn, err := c.DialContext(t.Context(), "tcp", s.Address())
		errtest.None(t, err)
		took("connected", 20*time.Millisecond)
		ask := func() (string, error) {
			b := make([]byte, 100)
			_, _ = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
			read, err := conn.Read(b)
			return string(b[:read]), err
		}
		if got, err := ask(); got != "+PONG\r\n" || err != nil {
			t.Errorf("%q %v", got, err)
		}
		took("replied", 20*time.Millisecond)

		c.SetSilent(s.Address(), true)
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		var timeout interface{ Timeout() bool }
		if _, err := ask(); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("a silent server: %v", err)
		}
		took("the deadline came", 50*time.Millisecond)
		c.SetSilent(s.Address(), false)
		_ = conn.SetReadDeadline(time.Time{})
		if got := make([]byte, 100); true { // TCP sends again what did not arrive
			if read, err := conn.Read(got); string(got[:read]) != "+PONG\r\n" || err != nil {
				t.Errorf("%q %v", got[:read], err)
			}
		}
		s.Kill()
		if _, err := ask(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("a connection that was reset: %v", err)
		}
		if _, err := c.DialContext(t.Context(), "tcp", s.Address()); err == nil {
			t.Error("a dead server takes connections")
		}
		_ = conn.Close()
		synctest.Wait()
		if open := n.Connections(); open != 0 {
			t.Errorf("%d connections are open", open)
		}
	})
}

// A command is lost before or after it runs, as the test says.
func TestTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simredis.NewNetwork()
		s := n.NewServer("10.0.0.1:6379")
		c := connect(n, s.Address(), time.Millisecond)
		defer func() {
			_ = c.Close()
			n.CloseAll()
		}()
		script := redis.NewScript("return redis.call('SETRANGE', KEYS[1], redis.call('STRLEN', KEYS[1]), 'x')")
		errtest.None(t, script.Load(t.Context(), c).Err())
		length := int64(0)
		for lost, runs := range map[simredis.Loss]int64{simredis.NoLoss: 1, simredis.LostBefore: 0, simredis.LostAfter: 1, simredis.Silent: 1} {
			s.SetTrouble(func([]string) simredis.Trouble { return simredis.Trouble{Lost: lost} })
			err := script.EvalSha(t.Context(), c, []string{"k"}).Err()
			s.SetTrouble(nil)
			if (err == nil) != (lost == simredis.NoLoss) {
				t.Errorf("loss %d: %v", lost, err)
			}
			length += runs
			now, err := c.StrLen(t.Context(), "k").Result()
			if err != nil || now != length {
				t.Errorf("loss %d: has run %d times, want %d; %v", lost, now, length, err)
			}
		}
	})
}
