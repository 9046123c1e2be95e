//go:build !real

package caddytest

// Real reports whether make real runs the tests, with real faults and the timeouts of the product.
const Real = false
