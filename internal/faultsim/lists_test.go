package faultsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// A list is complete, although the instance has sent no request since another node took over. The old primary has
// died, or is a replica.
func TestListAfterFailover(t *testing.T) {
	for name, end := range map[string]func(old *simredis.Server){
		"died":    (*simredis.Server).Kill,
		"demoted": func(old *simredis.Server) { old.SetReplica(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				const keys = 30 // on all nodes
				network := simredis.NewNetwork()
				cluster := network.NewCluster("10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379")
				old := cluster.Nodes[1]
				s := must(redisstore.NewCluster(redisstore.Options{
					Cluster: true, Address: old.Address(), Timeout: timeout, Dialer: network.NewClient(time.Millisecond),
				}, redisstore.Hooks{}))
				text := "{}"
				for n := range keys {
					errtest.None(t, s.Change(t.Context(), store.Change{Zone: "z", Key: fmt.Sprint(n), Override: &text}))
				}
				time.Sleep(time.Second) // virtual time
				end(old)
				by := cluster.Add(network, "10.0.0.4:6379")
				by.Start(old.Snapshot())
				cluster.Replace(old, by)
				listed := make(map[string]bool)
				for l := (store.Listing{Zone: "z", Kind: store.Overrides, Limit: 1}); ; {
					page, err := s.List(t.Context(), l)
					if err != nil {
						t.Error(err)
						break
					}
					for _, entry := range page.Entries {
						listed[entry.Key] = true
					}
					if l.Cursor = page.Next; l.Cursor == "" {
						break
					}
				}
				if len(listed) != keys {
					t.Errorf("%d of %d overrides are listed", len(listed), keys)
				}
				_ = s.Close()
				network.CloseAll()
				time.Sleep(time.Second) // virtual time
			})
		})
	}
}

// A change reaches the new primary, although the instance has not heard of the failover, and its connections lead to the
// old primary, which is a replica.
func TestChangeAfterFailover(t *testing.T) {
	inBubble(t, 0, func(t *testing.T) {
		network := simredis.NewNetwork()
		old, by := network.NewServer("10.0.0.1:6379"), network.NewServer("10.0.0.2:6379")
		sentinel := network.NewSentinel("10.0.0.9:26379", "main", old)
		s := must(redisstore.New(redisstore.Options{
			Address: "10.0.0.9:26379", MasterName: "main", Timeout: timeout, Dialer: network.NewClient(time.Millisecond),
		}, redisstore.Hooks{}))
		text := "{}"
		for _, key := range []string{"before", "after"} {
			if err := s.Change(t.Context(), store.Change{Zone: "z", Key: key, Override: &text}); err != nil {
				t.Errorf("%s the failover: %v", key, err)
			}
			by.Start(old.Snapshot())
			old.SetReplica(true)
			sentinel.Switch(by, false)
		}
		_ = s.Close()
		network.CloseAll()
		time.Sleep(time.Second) // virtual time
	})
}

// If Redis doesn't reply in time in the middle of a page, at any instant, the page ends, and the next one continues.
func TestListGoesOnAfterTimeout(t *testing.T) {
	ended := 0
	for at := time.Duration(0); at < 60*time.Millisecond; at += 10 * time.Millisecond {
		t.Run(at.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				const overrides, others = 100, 6000
				network := newNetwork(t)
				server := network.NewServer("10.0.0.1:6379")
				client := network.NewClient(5 * time.Millisecond)
				writer := redis.NewClient(&redis.Options{Addr: server.Address(), Dialer: client.DialContext})
				defer writer.Close()
				for i := range others {
					writer.Set(t.Context(), fmt.Sprint("other", i), "", 0)
				}
				s := openSim(t, network, 10*time.Millisecond, redisstore.Options{Address: server.Address(), Timeout: timeout})
				for i := range overrides {
					text := "{}"
					errtest.None(t, s.Change(t.Context(), store.Change{Zone: "z", Key: fmt.Sprint(i), Override: &text}))
				}
				go func() {
					time.Sleep(at)
					freeze(server, 3*timeout)
				}()
				found, pages := make(map[string]bool), 0
				for l := (store.Listing{Zone: "z", Kind: store.Overrides, Limit: 1000}); ; {
					began := time.Now()
					page, err := s.List(t.Context(), l)
					if waited := time.Since(began); waited > time.Second {
						t.Errorf("a page took %v", waited)
					}
					if err != nil { // still frozen
						if reasonOf(err) != store.ReasonTimeout {
							t.Fatal(err)
						}
						continue
					}
					pages++
					for _, entry := range page.Entries {
						found[entry.Key] = true
					}
					if l.Cursor = page.Next; l.Cursor == "" {
						break
					}
				}
				if len(found) != overrides {
					t.Errorf("%d overrides on %d pages, want %d", len(found), pages, overrides)
				}
				if pages > 1 {
					ended++
				}
			})
		})
	}
	if ended < 2 {
		t.Errorf("%d pages ended before their time", ended)
	}
}
