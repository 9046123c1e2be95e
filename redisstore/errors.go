package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// errNoMaster is what Sentinels mean by answering nothing.
var errNoMaster = errors.New("redisstore: the Sentinels know no master of this name: write master_name as in their configuration")

// toStoreError wraps an error of the client with what is known of its kind. ctx is
// the caller's own: if that one ended, the store is not to blame.
func toStoreError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if store.IsOverridden(err) {
		return err
	}
	if _, known := errors.AsType[*store.Error](err); known { // of the queue
		return err
	}
	if errors.Is(err, redis.Nil) && strings.Contains(err.Error(), "sentinel") {
		err = errNoMaster
	}
	e := &store.Error{Reason: store.ReasonConnection, Err: err}
	var answer redis.Error
	var inScript wire.ScriptError
	var malformed wire.ReplyError
	var elsewhere redirect
	switch {
	case errors.As(err, &inScript):
		e.Reason = reasonOf(inScript)
	case errors.As(err, &answer) && forbidden(answer.Error()):
		e.Reason = store.ReasonPermission
	case isSlotUnserved(err):
		e.Reason = store.ReasonKey
	case errors.As(err, &answer), errors.As(err, &malformed), errors.As(err, &elsewhere), errors.Is(err, errNoMaster):
		e.Reason = store.ReasonReply
	case errors.Is(err, errLate):
		e.Reason = store.ReasonTimeout
	case isTimeout(err):
		e.Reason = store.ReasonTimeout
	}
	return e
}

// isTimeout reports whether an error says that no reply came in time.
func isTimeout(err error) bool {
	if err == nil {
		return false
	}
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// isSlotUnserved tells whether a node says that nobody has a key's slot, as far as it knows.
func isSlotUnserved(err error) bool { return redis.HasErrorPrefix(err, "CLUSTERDOWN Hash slot") }

// reasonOf returns the reason of an error in the middle of a script: Redis denies a command to all,
// or else some program has stored something else under the key.
func reasonOf(e wire.ScriptError) string {
	text := string(e)
	switch {
	case forbidden(text):
		return store.ReasonPermission
	case containsAny(text, "READONLY", "OOM", "MISCONF", "NOREPLICAS", "LOADING", "CLUSTERDOWN", "MASTERDOWN"):
		return store.ReasonReply
	}
	return store.ReasonKey
}

// forbidden tells whether an answer says that this user may not do that, or may not
// even log in. Until Redis 7.2 a script sees such an error without its code.
func forbidden(answer string) bool {
	return containsAny(answer, "NOPERM", "NOAUTH", "WRONGPASS", "permission", "can't run this command")
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}
