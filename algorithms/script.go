package algorithms

import (
	_ "embed"
	"encoding/binary"
	"math"
	"strings"
)

//go:embed prelude.lua
var preludeLua string

//go:embed ban.lua
var banLua string

//go:embed slots.lua
var slotsLua string

//go:embed operations.lua
var operationsLua string

//go:embed change.lua
var changeLua string

// Set is a set of features of a script: algorithms, bans and slots. The zero Set is empty.
type Set uint64

const (
	banBit Set = 1 << (63 - iota)
	slotsBit
)

// With returns the set with one more algorithm in it.
func (s Set) With(a *Algorithm) Set { return s | a.bit }

// WithBan returns the set with bans in it.
func (s Set) WithBan() Set { return s | banBit }

// WithSlots returns the set with slots in it.
func (s Set) WithSlots() Set { return s | slotsBit }

// Script returns the Redis script that carries out operations on limits, bans and slots in the
// set. It mirrors [Take] and [Refund]. operations.lua documents its message and its reply.
func (s Set) Script() string { return s.compose(operationsLua) }

// ChangeScript returns the Redis script that forgets budgets, and sets bans and overrides.
// change.lua documents its arguments.
func ChangeScript() string { return Set(0).WithBan().compose(changeLua) }

func (s Set) compose(body string) string {
	var b strings.Builder
	b.WriteString(preludeLua)
	for _, a := range registered {
		if s&a.bit != 0 {
			b.WriteString(a.script())
		}
	}
	if s&banBit != 0 {
		b.WriteString(banLua)
	}
	if s&slotsBit != 0 {
		b.WriteString(slotsLua)
	}
	b.WriteString(body)
	return presized(b.String())
}

// presized gives tables space for a few entries, because growing a table costs more than filling it.
func presized(script string) string {
	const entries = 8
	return strings.ReplaceAll(script, "{--[[room]]}", "{"+strings.Repeat("nil,", entries)+"}")
}

// appendNumbers appends numbers as scripts read them.
func appendNumbers(message []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		message = binary.LittleEndian.AppendUint64(message, math.Float64bits(float64(n)))
	}
	return message
}
