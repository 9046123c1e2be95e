package redisstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// statesDiffer compares what is stored at the end with what Go makes of the program.
func (p *program) statesDiffer(client *redis.Client) (string, error) {
	for z, q := range p.requests {
		of := p.states[z]
		for n, l := range q.Limits {
			most := l.Events
			if of.writers != nil {
				l, most = of.writers[n], of.most
			}
			if diff, err := stateDifference(client, parityNames.Name(q.Key, l.ID), l.Limit, most, of.budgets[n]); err != nil || diff != "" {
				return diff, err
			}
		}
		if q.Ban != nil {
			key := parityNames.Name(q.Key, q.Ban.ID)
			if diff, err := numbersDifference(client, key, of.ban, q.Ban.Expires(&of.ban)); err != nil || diff != "" {
				return diff, err
			}
		}
		if q.Slots != nil {
			if diff, err := p.slotsDifference(client, parityNames.Name(q.Key, q.Slots.ID), of.slots); err != nil || diff != "" {
				return diff, err
			}
		}
	}
	for z, q := range p.requests {
		if q.ReservedID == "" {
			continue
		}
		if diff, err := p.slotsDifference(client, parityNames.Name(q.Key, q.ReservedID), p.states[z].reserved); err != nil || diff != "" {
			return diff, err
		}
	}
	for n, key := range p.poisons {
		if got, err := client.Get(context.Background(), p.poisonedName(n)).Result(); key.isList != (err != nil) || got != key.value {
			return fmt.Sprintf("poisoned key %d holds %q", n, got), nil
		}
	}
	return "", nil
}

// slotsDifference compares slots with what is stored of them.
func (p *program) slotsDifference(client *redis.Client, key string, want wiretest.Slots) (string, error) {
	stored, _ := client.Get(context.Background(), key).Bytes()
	got, err := wiretest.ReadSlots(nil, stored)
	if err != nil {
		return fmt.Sprintf("slots at %s: %v", key, err), nil
	}
	want = slices.DeleteFunc(slices.Clone(want), func(i wiretest.InstanceSlots) bool { return i.Expires == 0 && i.LineExpires == 0 })
	for _, s := range []wiretest.Slots{got, want} {
		slices.SortFunc(s, func(a, b wiretest.InstanceSlots) int {
			return cmp.Or(bytes.Compare(a.Instance[:], b.Instance[:]), cmp.Compare(a.ID, b.ID))
		})
	}
	if !slices.Equal(got, want) {
		return fmt.Sprintf("slots at %s: Go %v, Lua %v", key, want, got), nil
	}
	if len(got) == 0 {
		return "", nil
	}
	quantum := p.expiry / 3
	return expiryDifference(client, key, (want.Expires()/quantum+2)*quantum)
}

// expiryDifference compares the second in which a key expires.
func expiryDifference(client *redis.Client, key string, want algorithms.Micros) (string, error) {
	late, err := lateness(client, key, want)
	if err != nil || late != 0 {
		return fmt.Sprintf("%s expires %d s late", key, late), err
	}
	return "", nil
}

// lateness returns how many seconds after the wanted one a key expires.
func lateness(client *redis.Client, key string, want algorithms.Micros) (int64, error) {
	left, err := client.Do(context.Background(), "PTTL", key).Int64() // as a Duration it can be too large
	if err == nil && left <= 0 {
		err = fmt.Errorf("%s has no expiry", key)
	}
	return (left-1)/spareMS - want/1_000_000, err
}

// stateDifference compares a budget with what is stored of it. A log may have places for most events.
func stateDifference(client *redis.Client, key string, l *algorithms.Limit, most int64, want algorithms.State) (string, error) {
	if l.Algorithm().IsLog() {
		return logDifference(client, key, l, most, want)
	}
	return numbersDifference(client, key, want, l.Expires(&want))
}

func numbersDifference(client *redis.Client, key string, want algorithms.State, expiry algorithms.Micros) (string, error) {
	state, err := client.Get(context.Background(), key).Result()
	if err == redis.Nil {
		if want != (algorithms.State{}) {
			return fmt.Sprintf("state of %s: Go %+v, Lua none", key, want), nil
		}
		return "", nil
	} else if err != nil {
		return "", err
	}
	if got, ok := algorithms.ParseState(state); !ok || got != want {
		return fmt.Sprintf("state of %s: Go %+v, Lua %+v %x", key, want, got, state), nil
	}
	return expiryDifference(client, key, expiry)
}

// logEntrySize is how many numbers an entry of a log is.
func logEntrySize(l *algorithms.Limit) int {
	if l.Buckets > 0 {
		return 3
	}
	return 1
}

// logDifference compares a log with the ring that sliding_log.lua documents.
func logDifference(client *redis.Client, key string, l *algorithms.Limit, most int64, want algorithms.State) (string, error) {
	text, err := client.Get(context.Background(), key).Bytes()
	if err == redis.Nil {
		if want.Log.Len() > 0 || want.A > 0 {
			return fmt.Sprintf("log of %s: Go %+v, Lua none", key, want), nil
		}
		return "", nil
	} else if err != nil {
		return "", err
	}
	numbers := make([]int64, len(text)/8)
	for n := range numbers {
		numbers[n] = int64(math.Float64frombits(binary.LittleEndian.Uint64(text[8*n:])))
	}
	if len(numbers) < 7 || len(text)%8 > 0 {
		return fmt.Sprintf("log of %s: %d bytes", key, len(text)), nil
	}
	size := int64(logEntrySize(l))
	header, ring := numbers[:6], numbers[7:]
	head, entries := header[0], header[1]
	places := int64(len(ring)) / size
	if l.Buckets > 0 {
		most = l.Buckets + 1
	}
	if entries > places || places > most || int64(len(ring))%size > 0 || head > 0 && head >= places {
		return fmt.Sprintf("log of %s: %d entries from %d in %d numbers of %d for %d places", key, entries, head, len(ring), size, most), nil
	}
	var got, log []int64
	for n := range entries * size {
		got = append(got, ring[(head*size+n)%int64(len(ring))])
	}
	for n := range want.Log.Len() {
		log = append(log, want.Log.At(n))
	}
	newest, first, after := int64(0), int64(0), int64(0)
	if len(log) > 0 {
		newest = log[int64(len(log))-size]
		if size == 3 && len(got) > 0 && got[1] <= header[4] && header[4] < got[2] {
			first, after = log[1], log[len(log)-1]
			got[1] = header[4] // the first event of the log, which need not be that of its oldest bucket
		}
	}
	wantHeader := []int64{want.A, newest, first, after}
	if !slices.Equal(got, log) || !slices.Equal(header[2:], wantHeader) {
		return fmt.Sprintf("log of %s: Go %d %d, Lua %d %d", key, wantHeader, log, header, got), nil
	}
	// Giving back leaves the expiry where it is, which is too late by the time that the newest event counted.
	late, err := lateness(client, key, l.Expires(&want))
	if err != nil || len(log) > 0 && (late < 0 || late > max(l.Window, l.MinInterval)/1_000_000+1) {
		return fmt.Sprintf("%s expires %d s late", key, late), err
	}
	return "", nil
}

func putNumbers(client *redis.Client, key string, expiry algorithms.Micros, s algorithms.State) error {
	return put(client, key, redistest.PackState(s), expiry)
}

func put(client *redis.Client, key string, state []byte, expiry algorithms.Micros) error {
	return client.Do(context.Background(), "SET", key, state, "PX", (expiry/1_000_000+1)*spareMS).Err()
}

// putState writes the state of a request's first limit into Redis.
func putState(client *redis.Client, r store.ZoneRequest, s algorithms.State) error {
	l, key := r.Limits[0].Limit, parityNames.Name(r.Key, r.Limits[0].ID)
	if s.Log == nil {
		return putNumbers(client, key, l.Expires(&s), s)
	}
	var state []byte
	numbers := []int64{0, s.Log.Len(), s.A, s.Log.At(s.Log.Len() - 1), 0, 0, l.Events}
	for i := range s.Log.Len() {
		numbers = append(numbers, s.Log.At(i))
	}
	for _, n := range numbers {
		state = binary.LittleEndian.AppendUint64(state, math.Float64bits(float64(n)))
	}
	return put(client, key, state, l.Expires(&s))
}
