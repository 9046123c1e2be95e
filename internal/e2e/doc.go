// Package e2e has the tests that drive whole Caddys with this module, from outside and over the network. It never has code of the
// product, and its tests use no unexported names.
package e2e
