// Package simredis is a Redis in the process, for tests in simulated time. It runs the real Lua scripts, and keeps time by
// the clock of a testing/synctest bubble. A test can make it fail. Connections break before or after a command runs. The
// server hangs, restarts, forgets, is full, or loads its data. A replica with old data takes over. Slots of a cluster move.
//
// It knows only the commands that package redisstore sends. Tests compare it with a real Redis.
package simredis

import (
	"bufio"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// Server is a Redis. It must be used inside of one bubble. Its methods are safe for concurrent use.
type Server struct {
	address string
	network *Network
	thread  chan struct{} // holds a value while nothing runs: a Redis does one thing at a time

	mu       sync.Mutex // guards the fields below; commands run with it locked
	up       bool
	loading  bool          // it replies that it loads its data
	full     bool          // commands that need memory fail
	replica  bool          // commands that write fail
	denied   string        // a command that the user may not run
	perSlot  bool          // it denies scripts for several hash slots
	offset   time.Duration // of its clock
	trouble  func(args []string) Trouble
	data     map[string]value
	scripts  map[string]string // by hash
	machine  *machine
	cluster  *Cluster
	sentinel *Sentinel     // which this server is, instead of a Redis
	takes    time.Duration // each script
	keyTakes time.Duration // each key of a script, in addition
}

// value is the value of a key. Redis has only strings here.
type value struct {
	text    string
	expires int64 // in ms, by the clock of the server; 0: never
}

// Trouble says how a command fails on its way.
type Trouble struct {
	Before time.Duration // the command waits so long before it runs
	Lost   Loss          // how its connection breaks, if it does
}

// Loss is how a connection breaks.
type Loss int

// The ways in which a connection breaks.
const (
	NoLoss     Loss = iota
	LostBefore      // the command does not run
	LostAfter       // the command runs, and its reply is lost
	Silent          // the command runs, and its reply is never sent, but the connection stays open
)

// scriptTime is how long a script takes, unless SetScriptTime sets another time.
const scriptTime = 20 * time.Microsecond

// NewServer returns a server without data that takes connections at an address.
func (n *Network) NewServer(address string) *Server {
	s := &Server{
		address: address, network: n, thread: make(chan struct{}, 1), up: true, takes: scriptTime,
		data: make(map[string]value), scripts: make(map[string]string), machine: newMachine(),
	}
	s.machine.server = s
	s.thread <- struct{}{}
	n.mu.Lock()
	n.servers[address] = s
	n.mu.Unlock()
	return s
}

// Address returns the address of the server.
func (s *Server) Address() string { return s.address }

// set changes the state of the server.
func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// SetLoading decides whether the server replies only that it loads its data.
func (s *Server) SetLoading(loading bool) { s.set(func() { s.loading = loading }) }

// SetFull decides whether the memory of the server is full.
func (s *Server) SetFull(full bool) { s.set(func() { s.full = full }) }

// SetReplica decides whether the server is a replica.
func (s *Server) SetReplica(replica bool) { s.set(func() { s.replica = replica }) }

// Deny makes the server deny a command; "" none.
func (s *Server) Deny(command string) { s.set(func() { s.denied = command }) }

// DenySharing makes the server deny scripts for several hash slots.
func (s *Server) DenySharing() { s.set(func() { s.perSlot = true }) }

// SetTrouble sets a function that decides what happens to each EVALSHA; nil: nothing.
func (s *Server) SetTrouble(trouble func(args []string) Trouble) {
	s.set(func() { s.trouble = trouble })
}

// SetScriptTime sets how long each script takes, and how much longer for each of its keys.
func (s *Server) SetScriptTime(takes, perKey time.Duration) {
	s.set(func() { s.takes, s.keyTakes = takes, perKey })
}

// StepClock sets the clock of the server ahead, or back if by is below 0.
func (s *Server) StepClock(by time.Duration) { s.set(func() { s.offset += by }) }

// ForgetScripts is SCRIPT FLUSH.
func (s *Server) ForgetScripts() { s.set(func() { clear(s.scripts) }) }

// Flush is FLUSHALL.
func (s *Server) Flush() { s.set(func() { clear(s.data) }) }

// Snapshot is the data of a server at an instant.
type Snapshot map[string]value

// Snapshot returns the data.
func (s *Server) Snapshot() (data Snapshot) {
	s.set(func() { data = maps.Clone(s.data) })
	return data
}

// Freeze stops the server, as a SIGSTOP does, until the returned function is called.
func (s *Server) Freeze() (thaw func()) {
	<-s.thread
	return func() { s.thread <- struct{}{} }
}

// Kill ends the server. Its connections break, and it takes no new ones.
func (s *Server) Kill() {
	s.set(func() { s.up = false })
	s.network.Cut(s)
}

// Start starts the server again, with data, without scripts.
func (s *Server) Start(data Snapshot) {
	s.set(func() {
		s.up, s.data, s.scripts = true, maps.Clone(data), make(map[string]string)
		if s.data == nil {
			s.data = make(map[string]value)
		}
	})
}

// now is the clock of the server in microseconds. It is called with mu locked.
func (s *Server) now() int64 { return time.Now().Add(s.offset).UnixMicro() }

// accept begins to serve a connection, unless the server is down.
func (s *Server) accept(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up {
		go s.serve(&conn{link: l, in: l.toServer, out: l.toClient})
	}
	return s.up
}

// session is the state of a connection.
type session struct {
	conn   *conn
	asking bool // the next command may be about a slot that moves here
}

func (s *Server) serve(c *conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	at := &session{conn: c}
	for {
		args, err := redistest.ReadCommand(r)
		if err != nil {
			return
		}
		name := strings.ToUpper(args[0])
		var t Trouble
		var takes time.Duration
		s.set(func() {
			if name == "EVALSHA" {
				takes = s.takes + time.Duration(number(args[2]))*s.keyTakes
			}
			if s.trouble != nil && name == "EVALSHA" {
				t = s.trouble(args)
			}
		})
		if t.Before > 0 {
			time.Sleep(t.Before)
		}
		if t.Lost == LostBefore {
			c.reset()
			return
		}
		<-s.thread
		if takes > 0 {
			time.Sleep(takes)
		}
		s.mu.Lock()
		up := s.up
		var reply any
		if up {
			reply = s.run(at, name, args)
		}
		s.mu.Unlock()
		s.thread <- struct{}{}
		switch {
		case !up:
			return
		case t.Lost == LostAfter:
			c.reset()
			return
		case t.Lost == Silent:
			continue
		}
		if _, err := c.Write(appendReply(nil, reply)); err != nil {
			return
		}
	}
}
