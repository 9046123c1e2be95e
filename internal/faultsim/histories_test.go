package faultsim

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/linear"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// recordHistory makes a history in simulated time, while faults come at random instants.
func recordHistory(t *testing.T, s *linear.Subject, seed uint64, spoils bool) (h *linear.History) {
	inBubble(t, seed, func(t *testing.T) {
		network := simredis.NewNetwork()
		server := network.NewServer("10.0.0.1:6379")
		var stores [linear.Stores]*redisstore.Store
		for by := range stores {
			c := network.NewClient(0)
			c.SetDelay(100*time.Microsecond, 3*time.Millisecond)
			store, err := redisstore.New(redisstore.Options{Address: server.Address(), Timeout: timeout, Dialer: c}, redisstore.Hooks{})
			errtest.None(t, err)
			defer store.Close()
			stores[by] = store
		}
		ctx, stop := context.WithCancel(t.Context())
		if spoils {
			c := redis.NewClient(&redis.Options{Addr: server.Address(), Dialer: network.NewClient(0).DialContext, DisableIdentity: true})
			defer c.Close()
			go s.Spoil(ctx, c, seed)
		} else {
			go func() {
				for r := rand.New(rand.NewPCG(seed, 31)); ctx.Err() == nil; {
					time.Sleep(span(r, 0, 300*time.Millisecond)) // in simulated time
					shortFault(r, network, server)
				}
			}()
		}
		h = s.Run(t.Context(), stores, seed, 700*time.Millisecond, true)
		stop()
		time.Sleep(recovery) // in simulated time
	})
	return h
}

// shortFault lets something go wrong at an instant, or for a moment.
func shortFault(r *rand.Rand, network *simredis.Network, server *simredis.Server) {
	switch r.IntN(4) {
	case 0:
		server.ForgetScripts()
	case 1:
		network.Cut(server)
	case 2:
		freeze(server, span(r, 0, 2*timeout))
	case 3:
		loseNext(server, r)
	}
}

// Slots, bans and overrides are as the models of package linear say, also when replies are lost.
func TestHistories(t *testing.T) {
	for name, s := range map[string]*linear.Subject{"bans": linear.Bans, "overrides": linear.Overrides, "slots": linear.Slots} {
		t.Run(name, func(t *testing.T) {
			failures, unknown := 0, 0
			histories := max(*seeds/20, 10)
			for n := range histories {
				seed := *from + uint64(n)
				h := recordHistory(t, s, seed, false)
				failures += len(h.Failures)
				switch result, summary := s.Check(h); result {
				case porcupine.Illegal:
					t.Errorf("seed %d: not linearizable: %s, failures: %v", seed, summary, h.Failures)
				case porcupine.Unknown:
					unknown++
				}
			}
			if unknown > histories/2 || failures == 0 {
				t.Errorf("%d histories could not be checked, %d calls failed", unknown, failures)
			}
			t.Logf("%d histories: %d calls failed, %d histories could not be checked", histories, failures, unknown)
			for seed := range uint64(20) {
				if result, _ := s.Check(recordHistory(t, s, seed, true)); result == porcupine.Illegal {
					return
				}
			}
			t.Error("no history that was spoiled is known not to be linearizable")
		})
	}
}
