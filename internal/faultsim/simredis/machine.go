package simredis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// machine runs the scripts of a server.
type machine struct {
	server *Server
	state  *lua.LState
	wrote  bool // the script has written
	shared bool // the script has no KEYS
}

// programs has the compiled scripts of the process, by hash. A program is never changed.
var programs sync.Map // of *lua.FunctionProto

func newMachine() *machine {
	m := &machine{state: lua.NewState(lua.Options{RegistrySize: 4096, RegistryMaxSize: 1 << 20, SkipOpenLibs: true})}
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString, lua.OpenMath} {
		m.state.Push(m.state.NewFunction(open))
		m.state.Call(0, 0)
	}
	m.state.SetGlobal("redis", m.state.SetFuncs(m.state.NewTable(), map[string]lua.LGFunction{
		"call": func(l *lua.LState) int { return m.call(l, true) }, "pcall": func(l *lua.LState) int { return m.call(l, false) },
	}))
	m.state.SetGlobal("pcall", m.state.NewFunction(pcall))
	m.state.SetGlobal("struct", m.state.SetFuncs(m.state.NewTable(), map[string]lua.LGFunction{"pack": pack, "unpack": unpack}))
	return m
}

// same is a handler of errors that changes nothing. Without one the interpreter detaches the variables of functions that
// continue after a pcall, and loops when it writes the stack trace of a tail call.
func same(*lua.LState) int { return 1 }

// pcall is the function of Lua.
func pcall(l *lua.LState) int {
	if err := l.PCall(l.GetTop()-1, lua.MultRet, l.NewFunction(same)); err != nil {
		l.SetTop(0)
		l.Push(lua.LFalse)
		l.Push(errorOf(err))
		return 2
	}
	l.Insert(lua.LTrue, 1)
	return l.GetTop()
}

// errorOf returns what a script has raised.
func errorOf(err error) lua.LValue {
	if raised, ok := errors.AsType[*lua.ApiError](err); ok && raised.Object != nil {
		return raised.Object
	}
	return lua.LString(err.Error())
}

// run runs a script, and returns its reply.
func (m *machine) run(hash, script string, keys, args []string) any {
	program, known := programs.Load(hash)
	if !known {
		chunk, err := parse.Parse(strings.NewReader(script), "user_script")
		if err != nil {
			return failure("ERR Error compiling script: " + err.Error())
		}
		compiled, err := lua.Compile(separate(chunk), "user_script")
		if err != nil {
			return failure("ERR Error compiling script: " + err.Error())
		}
		program, _ = programs.LoadOrStore(hash, compiled)
	}
	l := m.state
	m.wrote, m.shared = false, len(keys) == 0
	l.SetGlobal("KEYS", listOf(l, keys))
	l.SetGlobal("ARGV", listOf(l, args))
	l.Push(l.NewFunctionFromProto(program.(*lua.FunctionProto)))
	if err := l.PCall(0, 1, l.NewFunction(same)); err != nil {
		raised := errorOf(err)
		if t, ok := raised.(*lua.LTable); ok {
			return failure(fmt.Sprintf("%s script: %s, on @user_script:1.", lua.LVAsString(t.RawGetString("err")), hash))
		}
		return failure("ERR " + strings.ReplaceAll(raised.String(), "\n", " "))
	}
	reply := l.Get(-1)
	l.Pop(1)
	return fromLua(reply)
}

func listOf(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

// fromLua converts what a script returns.
func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return int64(v)
	case lua.LBool:
		if v {
			return int64(1)
		}
		return nil
	case *lua.LTable:
		if err := v.RawGetString("err"); err != lua.LNil {
			return failure(lua.LVAsString(err))
		}
		list := []any{}
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			list = append(list, fromLua(v.RawGetInt(i)))
		}
		return list
	}
	return nil
}

// toLua converts the reply to a command.
func toLua(l *lua.LState, reply any) lua.LValue {
	switch reply := reply.(type) {
	case string:
		return lua.LString(reply)
	case int64:
		return lua.LNumber(reply)
	case status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(reply))
		return t
	case []any:
		t := l.CreateTable(len(reply), 0)
		for i, one := range reply {
			t.RawSetInt(i+1, toLua(l, one))
		}
		return t
	}
	return lua.LFalse
}

// call is redis.call, or redis.pcall if raises is false.
func (m *machine) call(l *lua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LNumber:
			args[i] = strconv.FormatFloat(float64(v), 'g', 17, 64)
			if n := float64(v); n == math.Trunc(n) && math.Abs(n) < 1e17 {
				args[i] = strconv.FormatInt(int64(n), 10)
			}
		case lua.LString:
			args[i] = string(v)
		default:
			l.RaiseError("Lua redis lib command arguments must be strings or integers")
		}
	}
	name := strings.ToUpper(args[0])
	needsMemory, isWrite := writes[name]
	var reply any
	elsewhere := failure("")
	if m.shared {
		elsewhere = m.server.elsewhere(name, args)
	}
	switch {
	case elsewhere != "":
		reply = elsewhere
	case strings.EqualFold(m.server.denied, name):
		reply = failure("ERR The user executing the script can't run this command or subcommand")
	case needsMemory && m.server.full && !m.wrote:
		reply = failure("OOM command not allowed when used memory > 'maxmemory'.")
	default:
		reply = m.server.do(name, args)
	}
	if f, failed := reply.(failure); failed {
		t := l.NewTable()
		t.RawSetString("err", lua.LString(f))
		if raises {
			l.Error(t, 1)
		}
		l.Push(t)
		return 1
	}
	m.wrote = m.wrote || isWrite
	l.Push(toLua(l, reply))
	return 1
}

// field is a field of a format of struct.pack: d, B, I2, I4, I7, i8, c16 or c0.
type field struct {
	kind byte
	size int
}

var formats sync.Map // [] of field, by text

func fieldsOf(format string) []field {
	if known, ok := formats.Load(format); ok {
		return known.([]field)
	}
	var fields []field
	for i := 1; i < len(format); { // the first character is <
		f := field{kind: format[i]}
		end := i + 1
		for end < len(format) && format[end] >= '0' && format[end] <= '9' {
			end++
		}
		f.size, _ = strconv.Atoi(format[i+1 : end])
		switch f.kind {
		case 'd':
			f.size = 8
		case 'B':
			f.size = 1
		}
		fields = append(fields, f)
		i = end
	}
	formats.Store(format, fields)
	return fields
}

// pack is struct.pack for little endian formats.
func pack(l *lua.LState) int {
	var b []byte
	for i, f := range fieldsOf(l.CheckString(1)) {
		switch arg := i + 2; f.kind {
		case 'd':
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(l.CheckNumber(arg))))
		case 'B', 'I', 'i':
			n := uint64(int64(l.CheckNumber(arg)))
			for range f.size {
				b = append(b, byte(n))
				n >>= 8
			}
		case 'c':
			text := l.CheckString(arg)
			if f.size > 0 {
				if len(text) < f.size {
					l.RaiseError("string too short")
				}
				text = text[:f.size]
			}
			b = append(b, text...)
		default:
			l.RaiseError("invalid format option")
		}
	}
	l.Push(lua.LString(b))
	return 1
}

// unpack is struct.unpack for little endian formats. c0 takes its length from the value before it.
func unpack(l *lua.LState) int {
	text, pos := l.CheckString(2), l.OptInt(3, 1)-1
	var results []lua.LValue
	for _, f := range fieldsOf(l.CheckString(1)) {
		size := f.size
		if f.kind == 'c' && size == 0 {
			size = int(results[len(results)-1].(lua.LNumber))
			results = results[:len(results)-1]
		}
		if pos < 0 || pos+size > len(text) {
			l.RaiseError("data string too short")
		}
		part := text[pos : pos+size]
		pos += size
		switch f.kind {
		case 'd':
			results = append(results, lua.LNumber(math.Float64frombits(uint64Of(part))))
		case 'B', 'I':
			results = append(results, lua.LNumber(uint64Of(part)))
		case 'i':
			results = append(results, lua.LNumber(int64(uint64Of(part))))
		case 'c':
			results = append(results, lua.LString(part))
		}
	}
	for _, v := range results {
		l.Push(v)
	}
	l.Push(lua.LNumber(pos + 1))
	return len(results) + 1
}

func uint64Of(text string) (n uint64) {
	for i := len(text) - 1; i >= 0; i-- {
		n = n<<8 | uint64(text[i])
	}
	return n
}
