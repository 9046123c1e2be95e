package faultsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// If Redis doesn't reply in time in the middle of a page, at any instant, the page ends, and the next one goes on.
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
					if err := s.Change(t.Context(), store.Change{Zone: "z", Key: fmt.Sprint(i), Override: &text}); err != nil {
						t.Fatal(err)
					}
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
