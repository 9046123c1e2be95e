package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"net/http"
	"strconv"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// floor is the least that an exact limiter through Redis costs. It has one token bucket, fixed when
// it is compiled, checks in shared script calls, and one field. It has no time-outs and survives no
// fault. In a cluster each node has its own calls, and no slot ever moves.
type floor struct{ nodes []*floorNode }

type floorNode struct {
	client    *redis.Client
	inCluster bool
	sha       string
	limit     []byte // the argument of the script

	mu     sync.Mutex
	queue  []*check
	flying int // script calls under way
}

// check is a request that waits for its turn in a script call.
type check struct {
	key       string
	done      chan error
	pass      bool
	remaining int64
}

const (
	mostFlying = 2
	mostShared = 128 // checks of a script call
	replySize  = 9   // bytes of a check
)

//go:embed floor.lua
var script string

var checks = sync.Pool{New: func() any { return &check{done: make(chan error, 1)} }}

func (*floor) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.floor", New: func() caddy.Module { return new(floor) }}
}

func (h *floor) Provision(ctx caddy.Context) (err error) {
	for _, address := range addresses() {
		n := &floorNode{client: open(address), inCluster: len(addresses()) > 1}
		n.limit = binary.LittleEndian.AppendUint64(n.limit, 1)         // an event per microsecond
		n.limit = binary.LittleEndian.AppendUint64(n.limit, 1_000_000) // at most
		if n.sha, err = n.client.ScriptLoad(ctx, script).Result(); err != nil {
			return err
		}
		h.nodes = append(h.nodes, n)
	}
	return nil
}

// node returns the node of a key. The slots are spread as startCluster of the benchmark does it.
func (h *floor) node(name string) *floorNode {
	if len(h.nodes) == 1 {
		return h.nodes[0]
	}
	slot := wire.HashSlotOfName(name)
	for n := range h.nodes {
		if slot < (n+1)*wire.HashSlotCount/len(h.nodes) {
			return h.nodes[n]
		}
	}
	return nil
}

var policy = []string{`"bench";q=1000000;w=1`}

func (h *floor) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	c := checks.Get().(*check)
	c.key = "caddy_rl:{" + key(r) + "}:bench"
	h.node(c.key).enqueue(c)
	err := <-c.done
	pass, remaining := c.pass, c.remaining
	checks.Put(c)
	if err != nil {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	w.Header()["Ratelimit"] = []string{`"bench";r=` + strconv.FormatInt(remaining, 10) + ";t=1"}
	w.Header()["Ratelimit-Policy"] = policy
	if !pass {
		w.WriteHeader(http.StatusTooManyRequests)
		return nil
	}
	return next.ServeHTTP(w, r)
}

func (h *floorNode) enqueue(c *check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = append(h.queue, c)
	if h.flying < mostFlying {
		h.flying++
		go h.send()
	}
}

// send makes script calls for as long as checks wait.
func (h *floorNode) send() {
	var args []any
	for {
		h.mu.Lock()
		if len(h.queue) == 0 {
			h.flying--
			h.mu.Unlock()
			return
		}
		some := h.queue[:min(len(h.queue), mostShared)]
		h.queue = append([]*check(nil), h.queue[len(some):]...)
		h.mu.Unlock()

		args = append(args[:0], "evalsha", h.sha, len(some))
		if h.inCluster {
			args[2] = 0 // KEYS have one hash slot
		}
		for _, c := range some {
			args = append(args, c.key)
		}
		args = append(args, h.limit)
		reply, err := h.client.Do(context.Background(), args...).Text()
		if err == nil && len(reply) != len(some)*replySize {
			err = errors.New("a reply of another length")
		}
		for i, c := range some {
			if err == nil {
				one := reply[i*replySize:][:replySize]
				c.pass = one[0] == 1
				c.remaining = int64(binary.LittleEndian.Uint64([]byte(one[1:])))
			}
			c.done <- err
		}
	}
}
