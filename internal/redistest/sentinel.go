package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// The name of the primary of a [Trio].
const Master = "mymaster"

// Trio is three Sentinels that watch a primary and its replica.
type Trio struct {
	// Sentinels require the password.
	Sentinels []*Server
	// Redis are the first primary and the first replica.
	Redis [2]*Server
	// Password is the password of the Sentinels.
	Password string

	settings []string // lines of the configuration of the Sentinels
}

// NoFailover is a setting of Sentinels that never consider a primary dead.
const NoFailover = "sentinel down-after-milliseconds " + Master + " 3600000"

// StartTrio starts a primary, a replica and three Sentinels, and waits until all know each other. The
// Sentinels consider a silent primary dead after 300 ms, unless settings, lines of their configuration, say otherwise.
func StartTrio(t testing.TB, password string, settings ...string) *Trio {
	t.Helper()
	trio := &Trio{Password: password, settings: settings}
	replication := []string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}
	trio.Redis[0] = Start(t, replication...)
	host, port, _ := net.SplitHostPort(trio.Redis[0].Addr)
	trio.Redis[1] = Start(t, append(replication, "--replicaof", host+" "+port)...)
	trio.waitForReplica(t, trio.Redis[1])
	for range 3 {
		trio.Sentinels = append(trio.Sentinels, trio.startSentinel(t, host, port))
	}
	for _, s := range trio.Sentinels {
		WaitFor(t, "the Sentinels to know each other", func() bool {
			state := sentinelClient(t, s, password).Master(context.Background(), Master).Val()
			return state["num-other-sentinels"] == "2" && state["num-slaves"] == "1" && state["flags"] == "master"
		})
	}
	for _, s := range trio.Sentinels {
		s.speedUp("500") // a Sentinel that hears of no new primary for four of these undoes a failover
	}
	return trio
}

// speedUp makes a Sentinel publish and ask each Redis more often than every 2 and 10 seconds. Before version 7
// this has no effect.
func (s *Server) speedUp(milliseconds string) {
	_ = s.Client.Do(context.Background(), "sentinel", "debug", "publish-period", milliseconds, "info-period", "200").Err()
}

func (trio *Trio) startSentinel(t testing.TB, host, port string) *Server {
	t.Helper()
	for range 5 {
		dir, own := t.TempDir(), FreePort(t)
		file := filepath.Join(dir, "sentinel.conf")
		config := fmt.Sprintf(`port %s
bind 127.0.0.1
dir %s
requirepass %s
sentinel sentinel-pass %s
sentinel monitor %s %s %s 2
sentinel down-after-milliseconds %[5]s 300
sentinel failover-timeout %[5]s 5000
`, own, dir, trio.Password, trio.Password, Master, host, port) + strings.Join(trio.settings, "\n")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", own), args: []string{file, "--sentinel"}}
		if s.start(t, &redis.Options{Addr: s.Addr, Password: trio.Password}) {
			s.speedUp("100")
			return s
		}
	}
	t.Fatal("redis-sentinel did not start")
	return nil
}

// Addrs returns the addresses of the Sentinels.
func (trio *Trio) Addrs() (all []string) {
	for _, s := range trio.Sentinels {
		all = append(all, s.Addr)
	}
	return all
}

// Roles returns the current primary and replica.
func (trio *Trio) Roles(t testing.TB) (master, replica *Server) {
	t.Helper()
	WaitFor(t, "one primary and one replica", func() bool {
		for i, s := range trio.Redis {
			if other := trio.Redis[1-i]; isMaster(s) && other.replicates() {
				master, replica = s, other
				return true
			}
		}
		return false
	})
	return master, replica
}

func isMaster(s *Server) bool {
	return strings.Contains(s.Client.Info(context.Background(), "replication").Val(), "role:master")
}

func (s *Server) replicates() bool {
	return strings.Contains(s.Client.Info(context.Background(), "replication").Val(), "master_link_status:up")
}

func (trio *Trio) waitForReplica(t testing.TB, s *Server) {
	t.Helper()
	WaitFor(t, "the replica to have copied the primary", s.replicates)
}

// Failover makes a Sentinel begin a failover to the replica.
func (trio *Trio) Failover(t testing.TB) {
	t.Helper()
	WaitFor(t, "a failover to begin", func() bool {
		for _, s := range trio.Sentinels {
			if sentinelClient(t, s, trio.Password).Failover(context.Background(), Master).Err() == nil {
				return true
			}
		}
		return false
	})
}

// AddUser adds a user to all Sentinels.
func (trio *Trio) AddUser(t testing.TB, name string, rules ...string) {
	t.Helper()
	for _, s := range trio.Sentinels {
		c := redis.NewClient(&redis.Options{Addr: s.Addr, Password: trio.Password, DisableIdentity: true})
		defer c.Close()
		if err := c.ACLSetUser(context.Background(), name, rules...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Clients returns the list of a Sentinel's connections.
func (trio *Trio) Clients(t testing.TB, s *Server) string {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr, Password: trio.Password, DisableIdentity: true})
	defer c.Close()
	return c.ClientList(context.Background()).Val()
}

func sentinelClient(t testing.TB, s *Server, password string) *redis.SentinelClient {
	c := redis.NewSentinelClient(&redis.Options{Addr: s.Addr, Password: password})
	t.Cleanup(func() { _ = c.Close() })
	return c
}
