package simredis

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// Cluster is a Redis Cluster. Its nodes agree at all times on who has which slot.
type Cluster struct {
	Nodes []*Server

	// Guarded by the mutexes of all nodes, of which commands hold one.
	owners [wire.HashSlotCount]*Server
	moving map[int]*Server // the nodes that slots move to
	down   bool            // as a node sees it that is cut off from the others
}

// NewCluster returns a cluster with nodes at these addresses, which share the slots evenly.
func (n *Network) NewCluster(addresses ...string) *Cluster {
	c := &Cluster{moving: make(map[int]*Server)}
	for _, address := range addresses {
		s := n.NewServer(address)
		s.cluster = c
		c.Nodes = append(c.Nodes, s)
	}
	for slot := range c.owners {
		c.owners[slot] = c.Nodes[slot*len(c.Nodes)/len(c.owners)]
	}
	return c
}

// change changes the cluster while no node runs a command.
func (c *Cluster) change(do func()) {
	for _, s := range c.Nodes {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	do()
}

// Add adds a node without slots. A command can't be under way.
func (c *Cluster) Add(n *Network, address string) *Server {
	s := n.NewServer(address)
	s.cluster = c
	c.Nodes = append(c.Nodes, s)
	return s
}

// Replace makes a node the owner of all slots of another one.
func (c *Cluster) Replace(old, by *Server) {
	c.change(func() {
		for slot := range c.owners {
			if c.owners[slot] == old {
				c.owners[slot] = by
			}
			if c.moving[slot] == old {
				c.moving[slot] = by
			}
		}
	})
}

// CutOff separates a node from the others. It still replies, with what it knew.
func (c *Cluster) CutOff(s *Server) {
	c.change(func() { s.cluster = &Cluster{Nodes: c.Nodes, owners: c.owners, down: true} })
}

// BeginMove begins to move a slot to a node, as CLUSTER SETSLOT does.
func (c *Cluster) BeginMove(slot int, to *Server) {
	c.change(func() {
		if c.owners[slot] != to {
			c.moving[slot] = to
		}
	})
}

// MoveKeys moves up to n keys of a slot that moves, and returns how many it moved.
func (c *Cluster) MoveKeys(slot, n int) (moved int) {
	c.change(func() {
		from, to := c.owners[slot], c.moving[slot]
		if to == nil || !to.up || !from.up {
			return
		}
		for key, v := range from.data {
			if moved < n && wire.HashSlotOfName(key) == slot {
				if v.expires > 0 { // MIGRATE sends the time that is left
					v.expires += (to.now() - from.now()) / 1000
				}
				to.data[key] = v
				delete(from.data, key)
				moved++
			}
		}
	})
	return moved
}

// EndMove ends the move of a slot.
func (c *Cluster) EndMove(slot int) {
	for c.MoveKeys(slot, 1000) > 0 {
	}
	c.change(func() {
		if to := c.moving[slot]; to != nil {
			c.owners[slot] = to
			delete(c.moving, slot)
		}
	})
}

// redirect returns how a node redirects a command about keys, or "" if it runs the command.
func (c *Cluster) redirect(s *Server, keys []string, asking bool) failure {
	if len(keys) == 0 {
		return ""
	}
	slot := wire.HashSlotOfName(keys[0])
	missing := 0
	for _, key := range keys {
		if wire.HashSlotOfName(key) != slot {
			return "CROSSSLOT Keys in request don't hash to the same slot"
		}
		if _, ok := s.get(key); !ok {
			missing++
		}
	}
	switch owner, to := c.owners[slot], c.moving[slot]; {
	case c.down:
		return "CLUSTERDOWN The cluster is down"
	case owner == nil:
		return "CLUSTERDOWN Hash slot not served"
	case owner == s && to != nil && missing == len(keys):
		return failure(fmt.Sprintf("ASK %d %s", slot, to.address))
	case owner == s && to != nil && missing > 0:
		return "TRYAGAIN Multiple keys request during rehashing of slot"
	case owner == s:
		return ""
	case to == s && asking && missing > 0 && len(keys) > 1:
		return "TRYAGAIN Multiple keys request during rehashing of slot"
	case to == s && asking:
		return ""
	default:
		return failure(fmt.Sprintf("MOVED %d %s", slot, owner.address))
	}
}

// elsewhere returns the error of a command in a script without KEYS, or "" if the node runs the command.
func (s *Server) elsewhere(name string, args []string) failure {
	if s.cluster == nil || len(args) < 2 {
		return ""
	}
	key := args[1]
	if name == "BITOP" {
		key = args[2]
	}
	switch to := s.cluster.redirect(s, []string{key}, false); {
	case s.perSlot:
		return "ERR Script attempted to access keys that do not hash to the same slot"
	case to == "" && !s.replica:
		return ""
	case s.cluster.down:
		return "ERR Script attempted to execute a command while the cluster is down"
	default:
		return "ERR Script attempted to access a non local key in a cluster node"
	}
}

// describe runs CLUSTER INFO and CLUSTER SLOTS.
func (c *Cluster) describe(what string) any {
	if what == "INFO" && c.down {
		return "cluster_state:fail\r\n"
	}
	if what == "INFO" {
		return "cluster_state:ok\r\n"
	}
	reply := []any{}
	for first := 0; first < len(c.owners); {
		last := first
		for last+1 < len(c.owners) && c.owners[last+1] == c.owners[first] {
			last++
		}
		if owner := c.owners[first]; owner != nil {
			host, port, _ := net.SplitHostPort(owner.address)
			reply = append(reply, []any{int64(first), int64(last), []any{host, number(port), fmt.Sprintf("%040d", slices.Index(c.Nodes, owner))}})
		}
		first = last + 1
	}
	return reply
}

// Sentinel is a Sentinel that knows the primary of one name.
type Sentinel struct {
	server      *Server
	name        string
	master      *Server
	subscribers []*conn
}

// NewSentinel returns a Sentinel at an address.
func (n *Network) NewSentinel(address, name string, master *Server) *Sentinel {
	s := n.NewServer(address)
	s.sentinel = &Sentinel{server: s, name: name, master: master}
	return s.sentinel
}

// Switch makes another server the primary, and tells subscribers so, or does not.
func (s *Sentinel) Switch(to *Server, tells bool) {
	var subscribers []*conn
	message := fmt.Sprintf("%s %s %s", s.name, strings.ReplaceAll(s.master.address, ":", " "), strings.ReplaceAll(to.address, ":", " "))
	s.server.set(func() {
		s.master = to
		if tells {
			subscribers = slices.Clone(s.subscribers)
		}
	})
	for _, c := range subscribers {
		_, _ = c.Write(appendReply(nil, []any{"message", "+switch-master", message}))
	}
}

// run runs a command of a Sentinel.
func (s *Sentinel) run(at *session, name string, args []string) any {
	switch {
	case name == "PING":
		return status("PONG")
	case name == "SENTINEL" && strings.EqualFold(args[1], "get-master-addr-by-name"):
		if args[2] != s.name {
			return nil
		}
		host, port, _ := net.SplitHostPort(s.master.address)
		return []any{host, port}
	case name == "SENTINEL":
		return []any{}
	case name == "SUBSCRIBE":
		s.subscribers = append(s.subscribers, at.conn)
		// The client awaits one reply for each channel.
		for i, channel := range args[1 : len(args)-1] {
			_, _ = at.conn.Write(appendReply(nil, []any{"subscribe", channel, int64(i + 1)}))
		}
		return []any{"subscribe", args[len(args)-1], int64(len(args) - 1)}
	case name == "HELLO":
		return failure("ERR unknown command 'HELLO'")
	}
	return status("OK")
}
