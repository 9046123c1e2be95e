package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// errNoMaster is the error of Sentinels that don't know the name of the primary. Their reply is empty.
var errNoMaster = errors.New("redisstore: the Sentinels know no primary with this name: write master_name as in their configuration")

// errTooLarge is the error of calls whose message can't be written. Redis wasn't asked.
var errTooLarge = &store.Error{
	Reason: store.ReasonKey,
	Err:    errors.New("redisstore: a request has more zones or limits than a message has room for: use fewer of them"),
}

// toStoreError wraps an error in a [store.Error] with its reason. ctx is the context of the caller:
// once it is done, its error is returned instead, because the store did not fail.
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
	if errors.As(err, new(*store.Error)) { // of the queue
		return err
	}
	if errors.Is(err, redis.Nil) && strings.Contains(err.Error(), "sentinel") {
		err = errNoMaster
	}
	for _, a := range advice {
		if strings.Contains(err.Error(), a.text) {
			err = fmt.Errorf("%w: %s", err, a.advice)
		}
	}
	e := &store.Error{Reason: store.ReasonConnection, Err: err}
	var reply redis.Error
	var scriptErr wire.ScriptError
	var malformed wire.ReplyError
	var redirected nodes.Redirect
	switch {
	case errors.As(err, &scriptErr):
		e.Reason = scriptErrorReason(scriptErr)
	case errors.As(err, &reply) && isPermissionDenied(reply.Error()):
		e.Reason = store.ReasonPermission
	case isHashSlotUnserved(err):
		e.Reason = store.ReasonKey
	case errors.As(err, &reply), errors.As(err, &malformed), errors.As(err, &redirected), errors.Is(err, errNoMaster):
		e.Reason = store.ReasonReply
	case errors.Is(err, errLate), isTimeout(err):
		e.Reason = store.ReasonTimeout
	}
	return e
}

const notSentinel = "this is not a Sentinel: write the addresses of Sentinels, or leave master_name out"

// advice has the next step for errors that contain a text.
var advice = []struct{ text, advice string }{
	{"ERR DB index is out of range", "write a lower db, or raise databases in redis.conf"},
	{"ERR unknown command 'sentinel'", notSentinel},
	{"ERR unknown command `sentinel`", notSentinel}, // of Redis 6.2
	{
		"ERR Could not find scripting engine",
		"this Valkey runs without Lua: install its Lua module, such as the package valkey-lua, and load it with loadmodule",
	},
}

// explainSentinel adds to the error of a Redis that the address is that of a Sentinel, if it is.
func explainSentinel(ctx context.Context, client *redis.Client, address string, err error) error {
	if err != nil && strings.Contains(err.Error(), "ERR unknown command") &&
		strings.Contains(client.Info(ctx, "server").Val(), "_mode:sentinel") { // redis_mode, or server_mode of Valkey
		return fmt.Errorf("%s is a Sentinel: write master_name <name> (%w)", address, err)
	}
	return err
}

// isReply reports whether the error of a command, or nil, shows that Redis replied.
func isReply(err error) bool { return err == nil || errors.As(err, new(redis.Error)) }

// isTimeout reports whether an error says that no reply came in time.
func isTimeout(err error) bool {
	if err == nil {
		return false
	}
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// isDialError reports whether an error says that no connection could be opened.
func isDialError(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "dial"
}

// isHashSlotUnserved reports whether a node replied that no node has the slot of a key.
func isHashSlotUnserved(err error) bool { return redis.HasErrorPrefix(err, "CLUSTERDOWN Hash slot") }

// scriptErrorReason returns the reason of an error in the middle of a script. Either Redis denies a
// command to every client, or another program has stored another value at the key.
func scriptErrorReason(e wire.ScriptError) string {
	text := string(e)
	switch {
	case isPermissionDenied(text):
		return store.ReasonPermission
	case containsAny(text, "READONLY", "OOM", "MISCONF", "NOREPLICAS", "LOADING", "CLUSTERDOWN", "MASTERDOWN"):
		return store.ReasonReply
	}
	return store.ReasonKey
}

// isPermissionDenied reports whether an error says that the user may not run a command or may not
// log in. Before Redis 7.2 a script sees such an error without its code.
func isPermissionDenied(reply string) bool {
	return containsAny(reply, "NOPERM", "NOAUTH", "WRONGPASS", "permission", "can't run this command")
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}
