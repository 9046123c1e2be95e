package limiter

import "iter"

// States returns the states of a request in all limiters, from the last one to the outermost one.
func States(outermost *State) iter.Seq[*State] {
	return func(yield func(*State) bool) {
		for s := outermost.innermost; s != nil && yield(s); s = s.outer {
		}
	}
}
