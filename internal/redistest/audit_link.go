package redistest

import (
	"bufio"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// sleepDelay waits for the time set by Delay.
func (a *Audit) sleepDelay() {
	if delay := a.delay.Load(); delay > 0 {
		time.Sleep(time.Duration(delay)) // a distant Redis
	}
}

// link is the connection of one client, and the connection to Redis for this client.
type link struct {
	audit         *Audit
	client, redis net.Conn
	process       int

	mu         sync.Mutex
	pending    []sentCommand // the commands without an answer, in order
	clientLeft bool          // nothing is added to pending any more
}

// sentCommand is a command that was passed on to Redis.
type sentCommand struct {
	call     *call // nil for a command that isn't recorded
	cutAfter float64
}

// Special values of sentCommand.cutAfter, which is the part of the reply after which the client's connection
// is closed. For example, 0.5 is after half of the reply.
const (
	notCut     = 2
	cutCommand = -1 // the connection is closed before the command is passed on
)

func (a *Audit) connect(client net.Conn) {
	process := a.currentProcess()
	redis, err := net.Dial("tcp", a.server.Addr)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{audit: a, client: client, redis: redis, process: process}
	a.mu.Lock()
	a.open[l] = struct{}{}
	restarted := a.process != process // then it is unknown which process has accepted
	a.mu.Unlock()
	if restarted {
		_ = client.Close()
	}
	a.links.Go(l.commands)
	l.replies()
	a.mu.Lock()
	delete(a.open, l)
	a.mu.Unlock()
}

// commands passes on the commands of the client, until the client disconnects.
func (l *link) commands() {
	in := bufio.NewReader(l.client)
	for {
		message, err := appendMessage(nil, in)
		if err != nil {
			break
		}
		p := sentCommand{call: l.audit.record(message), cutAfter: notCut}
		l.audit.sleepDelay()
		if p.call != nil {
			p.call.process, p.call.sentAt = l.process, time.Now().UnixMicro()
			p.cutAfter = l.audit.drawCut()
		}
		if p.cutAfter == cutCommand {
			break
		}
		l.mu.Lock()
		l.pending = append(l.pending, p)
		l.mu.Unlock()
		if _, err := l.redis.Write(message); err != nil {
			break
		}
	}
	_ = l.client.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clientLeft = true; len(l.pending) == 0 {
		_ = l.redis.Close()
	}
}

// record returns a record of a script call. For another command it returns nil.
func (a *Audit) record(message []byte) *call {
	value, _, _ := parseValue(message)
	words, _ := value.([]any)
	name := ""
	if len(words) > 0 {
		name, _ = words[0].(string)
	}
	switch name = strings.ToLower(name); name {
	case "evalsha", "eval":
		return &call{command: message}
	case "hello", "auth", "select", "client", "ping", "time", "info", "script", "cluster", "asking", "get":
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unknownCommands[name]++
	}
	return nil
}

// drawCut returns a random cutAfter.
func (a *Audit) drawCut() float64 {
	switch {
	case rand.Int64N(1_000_000) >= a.faultRate.Load():
		return notCut
	case rand.IntN(3) == 0:
		return cutCommand
	}
	return max(rand.Float64()-0.3, 0)
}

// replies passes on the replies of Redis. If the client has disconnected, replies still records them.
func (l *link) replies() {
	in := bufio.NewReader(l.redis)
	for last := false; !last; {
		message, err := appendMessage(nil, in)
		if err != nil {
			break
		}
		p := sentCommand{cutAfter: notCut}
		l.mu.Lock()
		if len(l.pending) > 0 {
			p, l.pending = l.pending[0], l.pending[1:]
		}
		last = l.clientLeft && len(l.pending) == 0
		l.mu.Unlock()
		if p.call != nil {
			p.call.reply, p.call.endedAt = slices.Clone(message), time.Now().UnixMicro() // without spare room
			l.audit.note(p.call)
		}
		l.audit.sleepDelay()
		if p.cutAfter != notCut {
			_, _ = l.client.Write(message[:int(p.cutAfter*float64(len(message)))])
			_ = l.client.Close()
			continue
		}
		_ = l.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = l.client.Write(message)
	}
	_ = l.client.Close()
	_ = l.redis.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pending {
		if p.call != nil {
			l.audit.note(p.call)
		}
	}
	l.pending = nil
}
