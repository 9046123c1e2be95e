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
	Master      string // its address; empty if no node has the hash slots
}

// ParseRange parses an element of the reply to CLUSTER SLOTS. It has the first and last hash slot, and
// the nodes that have them, the primary first, each with host and port. The client's parser rejects
// nodes without a host.
func ParseRange(reply any, from string) (Range, error) {
	values, _ := reply.([]any)
	if len(values) < 2 {
		return Range{}, wire.ReplyError("ends early")
	}
	if len(values) == 2 { // no node
		return Range{}, nil
	}
	first, isFirst := values[0].(int64)
	last, isLast := values[1].(int64)
	master, _ := values[2].([]any)
	if !isFirst || !isLast || first < 0 || last >= wire.HashSlotCount || len(master) < 2 {
		return Range{}, wire.ReplyError(fmt.Sprintf("has %.100v instead of slots and their nodes", reply))
	}
	host, _ := master[0].(string)
	return Range{first, last, resolveAddress(host, fmt.Sprint(master[1]), from)}, nil
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
	Kind    string // MOVED, ASK, TRYAGAIN, or ELSEWHERE of a shared script call
	Address string // of the node that has the key; empty with TRYAGAIN and ELSEWHERE
}

func (r Redirect) Error() string {
	return fmt.Sprintf("redisstore: %s %s: this Redis is a node of a cluster: write cluster in the redis block", r.Kind, r.Address)
}

// Resolve returns the address of the redirect, as resolveAddress does. IPv6 addresses have no
// brackets in redirects of Redis.
func (r Redirect) Resolve(from string) string {
	at := max(strings.LastIndexByte(r.Address, ':'), 0)
	return resolveAddress(strings.Trim(r.Address[:at], "[]"), strings.TrimPrefix(r.Address[at:], ":"), from)
}

// IsTryAgain reports whether an error is the reply of a node that lacks some keys of a call, while their hash slot moves.
func IsTryAgain(err error) bool {
	to, is := errors.AsType[Redirect](err)
	return is && to.Kind == "TRYAGAIN"
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
