// Package nodes reads what the nodes of a Redis Cluster say about their hash slots. It never asks them.
package nodes

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// Range is a range of hash slots of one primary.
type Range struct {
	First, Last int64
	Master      string // its address
}

// ParseRanges parses the reply of a node to CLUSTER SLOTS. Its elements have the first and last hash slot, and the nodes that
// have them, the primary first, each with host and port. Hash slots without a node are left out. The client's parser rejects
// nodes without a host.
func ParseRanges(reply []any, from string) (ranges []Range, err error) {
	for _, one := range reply {
		values, _ := one.([]any)
		if len(values) < 2 {
			return nil, wire.ReplyError("ends early")
		}
		if len(values) == 2 { // no node
			continue
		}
		first, isFirst := values[0].(int64)
		last, isLast := values[1].(int64)
		master, _ := values[2].([]any)
		if !isFirst || !isLast || first < 0 || last >= wire.HashSlotCount || len(master) < 2 {
			return nil, wire.ReplyError(fmt.Sprintf("has %.100v instead of slots and their nodes", one))
		}
		host, _ := master[0].(string)
		ranges = append(ranges, Range{first, last, resolveAddress(host, fmt.Sprint(master[1]), from)})
	}
	return ranges, nil
}

// resolveAddress returns the address of a node that another node has named. Without a host, the
// host is that of the other node.
func resolveAddress(host, port, from string) string {
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, port)
}

// Redirect is the error of a node that does not have a key, or not all keys of a call.
type Redirect struct {
	Kind    string // MOVED, ASK, TRYAGAIN if only some keys are there, or ELSEWHERE of a shared script call
	Address string // of the node that has the key; empty with TRYAGAIN and ELSEWHERE
}

func (r Redirect) Error() string {
	if r.Kind == "ELSEWHERE" {
		return wire.ErrElsewhere.Error()
	}
	return fmt.Sprintf("redisstore: %s %s: this Redis is a node of a cluster: write cluster in the redis block", r.Kind, r.Address)
}

// Resolve returns the address of the redirect, as resolveAddress does. IPv6 addresses have no
// brackets in redirects of Redis.
func (r Redirect) Resolve(from string) string {
	at := max(strings.LastIndexByte(r.Address, ':'), 0)
	return resolveAddress(strings.Trim(r.Address[:at], "[]"), strings.TrimPrefix(r.Address[at:], ":"), from)
}

// IsRedirect reports whether an error is a Redirect of a kind.
func IsRedirect(err error, kind string) bool {
	to, is := errors.AsType[Redirect](err)
	return is && to.Kind == kind
}

// AsRedirect returns err as a Redirect, if err is one, or else err itself.
func AsRedirect(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, wire.ErrElsewhere) {
		return Redirect{Kind: "ELSEWHERE"}
	}
	var reply interface { // as in the client
		error
		RedisError()
	}
	if !errors.As(err, &reply) {
		return err
	}
	words := strings.Fields(reply.Error())
	if len(words) < 2 || !slices.Contains([]string{"MOVED", "ASK", "TRYAGAIN"}, words[0]) {
		return err
	}
	r := Redirect{Kind: words[0]}
	if r.Kind != "TRYAGAIN" && len(words) > 2 {
		r.Address = words[2]
	}
	return r
}
