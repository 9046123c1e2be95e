//go:build !real

package caddytest

// Real reports whether the tests are those of make real, with real faults and the timeouts of the product.
const Real = false
