// Package sharing knows which hash slots of a node of a cluster share a script call. It never makes one.
//
// KEYS can have one hash slot only, so the keys of a shared call are among its arguments. Redis runs such a script, but some
// servers deny it. Then each hash slot has its own call, which costs a node several times as much.
//
// While a hash slot moves, the node lacks some of its keys. The script does nothing for the calls of these keys. They are
// made again, and for a second the calls of their hash slot have their own script call, whose KEYS the node redirects.
package sharing

import (
	"sync"
	"time"
)

// pause is how long a hash slot has its own script call after a key was not there, and the time between two tries of a
// shared script call.
const pause = time.Second

// Sharing says which hash slots of a node share script calls. Its methods are safe for concurrent use.
type Sharing struct {
	never bool   // no shared script call may be made
	try   func() // finds out whether the node runs shared script calls, and calls Tried or NotTried

	mu      sync.Mutex
	allowed bool // the node runs shared script calls
	denied  bool // the node denies them
	trying  bool
	vain    int // tries in a row that have shown neither
	lastTry time.Time
	pauses  map[int]time.Time // the ends of the pauses, by hash slot
}

// New returns a Sharing that knows nothing. If never is true, no shared script call may be made. Otherwise try finds out
// whether the node runs them, and calls Tried or NotTried.
func New(never bool, try func()) *Sharing {
	return &Sharing{never: never, try: try, pauses: make(map[int]time.Time)}
}

// maxVain is how many tries in a row may show neither. Then the node counts as one that denies shared script calls.
const maxVain = 10

// Tried notes what a try has shown: at most one of the two. It returns whether the node counts as one that denies.
func (s *Sharing) Tried(allowed, denied bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vain++; allowed || denied {
		s.vain = 0
	}
	s.allowed, s.denied, s.trying = allowed, denied || s.vain >= maxVain, false
	return s.denied
}

// NotTried notes that a try was not possible. Another one begins after a while.
func (s *Sharing) NotTried() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trying = false
}

// Forget forgets whether the node runs shared script calls.
func (s *Sharing) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed, s.denied, s.vain = false, false, 0
}

// Denied reports whether the node denies shared script calls, or none may be made.
func (s *Sharing) Denied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.never || s.denied
}

// TryIfDue begins a try each second while it is unknown whether the node runs shared script calls.
func (s *Sharing) TryIfDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.never && !s.allowed && !s.denied && !s.trying && now.Sub(s.lastTry) >= pause {
		s.trying, s.lastTry = true, now
		go s.try()
	}
}

// Shares reports whether a hash slot shares a script call with others now.
func (s *Sharing) Shares(hashSlot int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, pauses := s.pauses[hashSlot]
	if pauses && !now.Before(end) {
		delete(s.pauses, hashSlot)
		pauses = false
	}
	return s.allowed && !pauses
}

// Pause lets a hash slot have its own script call for a second.
func (s *Sharing) Pause(hashSlot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses[hashSlot] = time.Now().Add(pause)
}
