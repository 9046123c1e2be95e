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

// Features are the features of a script: algorithms, bans and slots. The zero Features has none.
type Features uint64

const (
	banBit Features = 1 << (63 - iota)
	slotsBit
)

// With returns the features with one more algorithm.
func (f Features) With(a *Algorithm) Features { return f | a.bit }

// WithBan returns the features with bans.
func (f Features) WithBan() Features { return f | banBit }

// WithSlots returns the features with slots.
func (f Features) WithSlots() Features { return f | slotsBit }

// Script returns the Redis script that carries out operations with these features. It mirrors [Take] and
// [Refund]. operations.lua documents its message and its reply.
func (f Features) Script() string { return f.compose(operationsLua) }

// ChangeScript returns the Redis script that forgets budgets, and sets bans and overrides.
// change.lua documents its arguments.
func ChangeScript() string { return Features(0).WithBan().compose(changeLua) }

func (f Features) compose(body string) string {
	var b strings.Builder
	b.WriteString(preludeLua)
	for _, a := range registered {
		if f&a.bit != 0 {
			b.WriteString(a.script())
		}
	}
	if f&banBit != 0 {
		b.WriteString(banLua)
	}
	if f&slotsBit != 0 {
		b.WriteString(slotsLua)
	}
	b.WriteString(body)
	const entries = 8 // tables have space for a few, because growing a table costs more than filling it
	return strings.ReplaceAll(b.String(), "{--[[room]]}", "{"+strings.Repeat("nil,", entries)+"}")
}

// appendNumbers appends numbers as scripts read them.
func appendNumbers(message []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		message = binary.LittleEndian.AppendUint64(message, math.Float64bits(float64(n)))
	}
	return message
}
