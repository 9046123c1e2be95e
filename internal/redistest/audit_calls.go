package redistest

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
)

// parsedCall is a call with its parsed command and reply.
type parsedCall struct {
	*call
	kind        scriptKind
	keys        []string
	argv        []string
	head        wire.Head            // of operations.lua
	operations  []wiretest.Operation // of operations.lua
	packedReply string               // of operations.lua
	failed      replyError           // the error that Redis replied
	at          algorithms.Micros    // the instant of the call, by Redis if it has answered
}

// scriptKind is the script that a call runs.
type scriptKind int

const (
	noScript         scriptKind = iota // a FLUSHALL or a Spoil
	operationsScript                   // operations.lua
	changeScript                       // change.lua
	probeScript                        // probe.lua
)

// knownScripts returns the kinds of all scripts that a store may run, by their SHA-1.
var knownScripts = sync.OnceValue(func() map[string]scriptKind {
	known := map[string]scriptKind{scriptSHA(algorithms.ChangeScript()): changeScript}
	all := algorithms.All()
	for members := range 1 << (len(all) + 2) {
		var features algorithms.Features
		for i, algorithm := range all {
			if members&(1<<i) != 0 {
				features = features.With(algorithm)
			}
		}
		if members&(1<<len(all)) != 0 {
			features = features.WithBan()
		}
		if members&(2<<len(all)) != 0 {
			features = features.WithSlots()
		}
		known[scriptSHA(features.Script())] = operationsScript
	}
	return known
})

func scriptSHA(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

var errShort = errors.New("the command ends early")

// parseCall parses a call and its reply.
func parseCall(c *call) (*parsedCall, error) {
	p := &parsedCall{call: c, at: c.sentAt}
	if c.flushed || c.spoiled != "" {
		return p, nil
	}
	if err := p.parseCommand(); err != nil || c.reply == nil || p.kind == probeScript {
		return p, err
	}
	value, _, err := parseValue(c.reply)
	if err != nil {
		return nil, err
	}
	switch value := value.(type) {
	case replyError:
		p.failed = value
		return p, nil
	case int64:
		p.at = value
		return p, expectScript(p.kind, changeScript)
	case string:
		p.packedReply = value
		reply, err := wiretest.ReadReply(value)
		if err == nil {
			p.at = reply.Now
		}
		return p, errors.Join(err, expectScript(p.kind, operationsScript))
	}
	return nil, errors.New("the reply is neither a text nor a number")
}

func expectScript(kind, want scriptKind) error {
	if kind != want {
		return errors.New("the reply is one of another script")
	}
	return nil
}

// parseCommand reads which script is called, and its arguments.
func (p *parsedCall) parseCommand() error {
	value, _, err := parseValue(p.command)
	list, _ := value.([]any)
	if err != nil || len(list) < 3 {
		return errors.Join(err, errShort)
	}
	words := make([]string, len(list))
	for i, word := range list {
		words[i], _ = word.(string)
	}
	sha, n := words[1], words[2]
	if strings.EqualFold(words[0], "eval") {
		sha = scriptSHA(sha)
	}
	count, err := strconv.Atoi(n)
	if err != nil || count < 0 || count > len(words)-3 {
		return errShort
	}
	p.keys, p.argv, p.kind = words[3:3+count], words[3+count:], knownScripts()[sha]
	switch p.kind {
	case operationsScript:
		if last := len(p.argv) - 1; len(p.keys) == 0 && last > 0 { // a call that hash slots share
			p.keys, p.argv = p.argv[:last], p.argv[last:]
		}
		if len(p.argv) != 1 {
			return fmt.Errorf("%d arguments, where one belongs", len(p.argv))
		}
		p.head, p.operations, err = wiretest.ReadMessage(p.keys, p.argv[0])
		return err
	case changeScript:
		if len(p.keys) != 1 {
			return fmt.Errorf("%d keys, where one belongs", len(p.keys))
		}
	default:
		for _, key := range p.keys {
			if _, id, _ := strings.Cut(key, "}:"); !strings.HasPrefix(id, ":probe") { // zones have names
				return errors.New("a script that is none of those there are")
			}
		}
		p.kind = probeScript
	}
	return nil
}
