// Command yardstick does a fixed piece of work on all cores, and prints how many milliseconds of processor time it took.
// scripts/budget.sh compares it with what the same work takes on the machine that budgets are written for.
//
// The work is as mixed as that of a compiler or a test: it hashes, sorts, allocates, and follows pointers.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	pieces = 192    // of the whole work
	size   = 60_000 // numbers of a piece
)

func main() {
	var next atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for n := next.Add(1); n <= pieces; n = next.Add(1) {
				if piece(uint64(n)) != size {
					panic("two of the numbers are equal")
				}
			}
		})
	}
	all.Wait()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	fmt.Println((usage.Utime.Nano() + usage.Stime.Nano()) / 1_000_000)
}

// piece draws numbers by hashing, sorts them, and returns how many differ.
func piece(seed uint64) int {
	known := make(map[uint64]*[32]byte)
	numbers := make([]uint64, 0, size)
	var text [16]byte
	binary.LittleEndian.PutUint64(text[:], seed)
	for i := range uint64(size) {
		binary.LittleEndian.PutUint64(text[8:], i)
		sum := sha256.Sum256(text[:])
		n := binary.LittleEndian.Uint64(sum[:])
		known[n] = &sum
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		if binary.LittleEndian.Uint64(known[n][:]) != n {
			panic("the map holds another number")
		}
	}
	return len(known)
}
